"""What OpenAI's strict mode has against a schema (its guide "Structured outputs", supported schemas, February 2026)."""

from __future__ import annotations

from typing import Any

import openai
from pydantic import BaseModel

PLAIN = {"type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs", "properties", "required", "items"}
BOUNDS = {"pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
KNOWN = PLAIN | BOUNDS | {"additionalProperties", "minItems", "maxItems"}
MOST_LEVELS = 10


def strict_faults(schema: type[BaseModel]) -> list[str]:
    """Why strict mode would refuse a schema as the client sends it; nothing where it would not."""
    sent: Any = openai.pydantic_function_tool(schema)["function"].get("parameters")
    root = [] if sent.get("type") == "object" else ["the root is no object"]
    return root + faults_at(sent, schema.__name__, 0)


def faults_at(node: Any, where: str, level: int) -> list[str]:
    if isinstance(node, bool):
        return [f"{where}: an open map"]
    found = [f"{where}: {key}" for key in sorted(set(node) - KNOWN)]
    if node.get("type") == "object" and (node.get("additionalProperties") is not False or "properties" not in node):
        found.append(f"{where}: an open map")
    if level > MOST_LEVELS:
        found.append(f"{where}: too deep")
    for group in ("properties", "$defs"):
        for name, each in node.get(group, {}).items():
            found += faults_at(each, f"{where}.{name}", level + (group == "properties"))
    for each in (*node.get("anyOf", ()), *([node["items"]] if "items" in node else ())):
        found += faults_at(each, where, level)
    return found
