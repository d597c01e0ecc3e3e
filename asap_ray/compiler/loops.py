"""How often a while loop runs: from the bound, the start and the step of its induction variable.

TPU programs do not print a trip count. The condition compares one element of the loop's state with a bound, the body
adds a step to that element (a collective matmul adds 2: its body does two turns), and the start is what the loop is
given. Each of them may stand behind copies, fusions and tuples, and, in a loop inside another, in the state of the
outer loop, which passes it on unchanged. So values are evaluated symbolically, as `coefficient * variable + constant`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from asap_ray.compiler.hlo import Computation, Instruction, Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_SAME = frozenset({"copy", "bitcast", "convert", "reshape", "copy-done", "copy-start", "optimization-barrier"})
_SWAPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}
_NUMBER = re.compile(r"-?\d+$")

Affine = tuple[float, float]
"""Coefficient of the induction variable, and what is added."""


@dataclass(frozen=True)
class _Scope:
    """A computation, and where values that come from outside of it are found.

    `caller` is the scope and the instruction that call it. `variable` is the element of a loop body's or condition's
    state that stands for the induction variable, where one does.
    """

    computation: Computation
    caller: tuple[_Scope, Instruction] | None = None
    variable: int | None = None


class LoopReader:
    """Finds the trips of the loops of one program."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._found: dict[tuple[str, str], int | None] = {}

    def trips(self, computation: Computation, loop: Instruction) -> int | None:
        """How often a `while` instruction runs its body, or None where that cannot be read from the program."""
        key = computation.name, loop.name
        if key not in self._found:
            known = _KNOWN.search(loop.attributes)
            self._found[key] = int(known[1]) if known else self._read(self._scope(computation), loop)
        return self._found[key]

    def _scope(self, computation: Computation) -> _Scope:
        """The scope of a computation that is called from one place only; of others, nothing outside is known."""
        callers = {(c.name, i.name): (c, i) for c, i in self.module.callers.get(computation.name, ())}
        if computation.name == self.module.entry or len(callers) != 1:
            return _Scope(computation)
        ((outer, call),) = callers.values()
        return _Scope(computation, (self._scope(outer), call))

    def _read(self, scope: _Scope, loop: Instruction) -> int | None:
        condition, body = self.module.called(loop, "condition"), self.module.called(loop, "body")
        if condition is None or body is None:
            return None
        compared = self._compared(condition)
        if compared is None:
            return None
        inner, left, right, direction = compared
        for variable in range(len(loop.arrays) or 1):
            test = _Scope(condition, (scope, loop), variable)
            sides = [self._value(_inside(inner, test), each) for each in (left, right)]
            turned = _Scope(body, (scope, loop), variable)
            step = self._element(turned, body.root, variable)
            start = self._initial(scope, loop, variable)
            found = _trips(sides, direction, start, step)
            if found is not None:
                return found
        return None

    def _compared(self, condition: Computation) -> tuple[_Chain, Instruction, Instruction, str] | None:
        """The comparison that a condition returns: the computations that lead to it, both sides, the direction."""
        computation, root, chain = condition, condition.root, _Chain(condition)
        while root.opcode in _SAME or root.opcode == "fusion":
            if root.opcode == "fusion":
                called = self.module.called(root)
                if called is None:
                    return None
                chain = _Chain(called, chain, root)
                computation, root = called, called.root
            else:
                root = computation.operands(root)[0]
        sides = computation.operands(root)
        if root.opcode != "compare" or len(sides) != 2:
            return None
        return chain, sides[0], sides[1], root.attribute("direction") or ""

    def _initial(self, scope: _Scope, loop: Instruction, element: int) -> Affine | None:
        """What an element of a loop's state is at the start."""
        state = scope.computation.operands(loop)
        return self._element(scope, state[0], element) if state else None

    def _element(self, scope: _Scope, of: Instruction, element: int) -> Affine | None:
        """An element of a tuple, or the value itself where it is no tuple."""
        if of.opcode == "tuple":
            parts = scope.computation.operands(of)
            return self._value(scope, parts[element]) if element < len(parts) else None
        if of.opcode == "fusion" and (called := self.module.called(of)):
            inner = _Scope(called, (scope, of))
            return self._element(inner, called.root, element)
        if of.opcode == "parameter":
            return self._given(scope, of, element)
        if of.opcode == "while":
            return self._kept(scope, of, element)
        if of.opcode in _SAME:
            return self._element(scope, scope.computation.operands(of)[0], element)
        return None if of.opcode == "get-tuple-element" or element else self._value(scope, of)

    def _value(self, scope: _Scope, of: Instruction) -> Affine | None:
        operands = scope.computation.operands(of)
        if of.opcode == "constant":
            return (0.0, float(of.literal)) if _NUMBER.match(of.literal) else None
        if of.opcode in _SAME and operands:
            return self._value(scope, operands[0])
        if of.opcode == "get-tuple-element":
            return self._element(scope, operands[0], int(of.attribute("index") or 0))
        if of.opcode in ("fusion", "parameter"):
            return self._element(scope, of, 0)
        if of.opcode in ("add", "subtract", "multiply") and len(operands) == 2:
            return _combined(of.opcode, self._value(scope, operands[0]), self._value(scope, operands[1]))
        return None

    def _given(self, scope: _Scope, parameter: Instruction, element: int) -> Affine | None:
        """An element of a parameter: the induction variable, what a fusion is given, or a loop's unchanged state."""
        if scope.variable is not None and element == scope.variable:
            return 1.0, 0.0
        if scope.caller is None:
            return None
        outer, call = scope.caller
        if call.opcode == "while":
            return self._kept(outer, call, element)
        passed = outer.computation.operands(call)
        number = int(parameter.literal)
        if number >= len(passed):
            return None
        single = len(parameter.arrays) == 1 and not parameter.shape.startswith("(")
        return self._value(outer, passed[number]) if single else self._element(outer, passed[number], element)

    def _kept(self, scope: _Scope, loop: Instruction, element: int) -> Affine | None:
        """What a loop's element is at the start, if the body passes it on unchanged."""
        body = self.module.called(loop, "body")
        if body is None or not self._unchanged(body, element):
            return None
        return self._initial(scope, loop, element)

    def _unchanged(self, body: Computation, element: int) -> bool:
        root = body.root
        if root.opcode == "parameter":
            return True
        if root.opcode != "tuple" or element >= len(root.operands):
            return False
        each = body.operands(root)[element]
        while each.opcode in _SAME:
            each = body.operands(each)[0]
        if each.opcode != "get-tuple-element" or int(each.attribute("index") or 0) != element:
            return False
        return body.operands(each)[0].opcode == "parameter"


@dataclass(frozen=True)
class _Chain:
    """A computation inside a condition, with the fusions that lead to it from the condition."""

    computation: Computation
    outer: _Chain | None = None
    call: Instruction | None = None


def _inside(chain: _Chain, condition: _Scope) -> _Scope:
    """The scope of a chain's computation, where the condition itself has a scope."""
    if chain.outer is None or chain.call is None:
        return condition
    return _Scope(chain.computation, (_inside(chain.outer, condition), chain.call))


def _combined(opcode: str, left: Affine | None, right: Affine | None) -> Affine | None:
    if left is None or right is None:
        return None
    if opcode == "multiply":
        if left[0] and right[0]:
            return None
        return left[0] * right[1] + right[0] * left[1], left[1] * right[1]
    sign = 1.0 if opcode == "add" else -1.0
    return left[0] + sign * right[0], left[1] + sign * right[1]


def _trips(sides: list[Affine | None], direction: str, start: Affine | None, step: Affine | None) -> int | None:
    """Trips while `variable <direction> bound`, from `start` by `step`; None where one of them is not known."""
    left, right = sides
    if left is None or right is None or start is None or step is None or start[0] or step[0] != 1.0:
        return None
    if right[0]:
        left, right, direction = right, left, _SWAPPED.get(direction, "")
    if left[0] != 1.0 or right[0] or not step[1]:
        return None
    distance = (right[1] - left[1] - start[1]) / step[1]
    if direction == "NE":
        return int(distance) if distance >= 0 and distance == int(distance) else None
    if direction not in ("LT", "LE", "GT", "GE") or (step[1] > 0) != (direction in ("LT", "LE")):
        return None
    if direction in ("LE", "GE"):
        return max(math.floor(distance) + 1, 0)
    return max(math.ceil(distance), 0)
