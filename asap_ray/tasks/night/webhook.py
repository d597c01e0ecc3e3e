"""One message at the end of a night, to a host that the command allows. The address is a secret, and is no setting: it
comes from the environment, and neither it nor a path, a word or an error of the run is sent or written down."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from asap_ray.errors import ConfigError
from asap_ray.report.night import ORDER, Night

VARIABLE = "ASAP_RAY_WEBHOOK"
LOCAL = ("localhost", "127.0.0.1", "::1")
WAIT_S = 10.0
MOST_CELLS = 20


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """Nowhere else: a host that is allowed could send the message to one that is not."""
        return


def address_of(hosts: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The address to tell, None where no host is allowed.

    Raises:
        ConfigError: a host is allowed and the variable names none, or another one, or no https.
    """
    if not hosts:
        return None
    given = environ.get(VARIABLE, "")
    try:
        parts = urlsplit(given)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = None, None
    if parts is None or not host or parts.username or parts.password:
        raise ConfigError(
            "nightly.webhook_hosts", ", ".join(hosts), f"with {VARIABLE}=https://HOST/PATH in the environment"
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and host in LOCAL):
        raise ConfigError(VARIABLE, f"{parts.scheme}://…", "https, or http of this machine")
    if host not in hosts:
        raise ConfigError("nightly.webhook_hosts", ", ".join(hosts), f"the host of {VARIABLE}, which is {host}")
    return given


def message(night: Night) -> dict[str, Any]:
    """What is told: the counts, and of each cell that is not unchanged its name, verdict, ratio and cause."""
    counts = {verdict: len(night.of(verdict)) for verdict in ORDER}
    told = [each for verdict in ORDER[:-1] for each in night.of(verdict)]
    cells = [
        {"cell": each.row.cell, "verdict": each.verdict, "cause": each.cause, "ratio": each.ratio}
        for each in told[:MOST_CELLS]
    ]
    text = f"asap_ray night {night.name}: " + ", ".join(
        f"{count} {verdict}" for verdict, count in counts.items() if count
    )
    return {"text": text, "night": night.name, "status": night.status, "counts": counts, "cells": cells}


def tell(address: str, night: Night) -> str:
    """Send the message; returns what went wrong, without the address, or ""."""
    data = json.dumps(message(night)).encode()
    request = urllib.request.Request(address, data=data, headers={"Content-Type": "application/json"}, method="POST")
    try:
        urllib.request.build_opener(_Stay).open(request, timeout=WAIT_S).close()
    except urllib.error.HTTPError as error:
        return f"the webhook answered {error.code}"
    except (OSError, ValueError) as error:
        return f"the webhook cannot be reached: {type(error).__name__}"
    return ""
