"""Every message on the control channel survives the wire, and nothing else gets through."""

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daisychain.facts import NodeStep, RunSpec, RunState, Snapshot
from daisychain.link import messages
from daisychain.link.messages import AnyMessage, Frame, Message, RankReport, Refused, decode, encode

KINDS = get_args(AnyMessage)

# what JSON can carry exactly: numbers that are finite, text without lone surrogates, integers of 64 bits
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a message's field, built field by field: hypothesis knows no msgspec structs."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return st.fixed_dictionaries({f.name: of(f.type) for f in fields}).map(lambda facts: kind(**facts))
    if kind is Any:
        return VALUES
    args = get_args(kind)
    if getattr(kind, "__origin__", None) is tuple and args[-1] is ...:
        return st.lists(of(args[0]), max_size=2).map(tuple)
    if getattr(kind, "__origin__", None) is tuple:
        return st.tuples(*(of(arg) for arg in args))
    if getattr(kind, "__origin__", None) is dict:
        return st.dictionaries(of(args[0]), of(args[1]), max_size=2)
    if args and not getattr(kind, "__origin__", None):
        return st.one_of([of(arg) for arg in args])
    return st.from_type(kind)


def test_every_message_is_in_the_union() -> None:
    defined = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    }
    assert defined == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_a_message_survives_the_wire(kind: type[Message], data: st.DataObject) -> None:
    frame = Frame(m=data.draw(of(kind)), id=data.draw(st.integers(0, 2**53)), re=data.draw(st.integers(0, 2**53)))
    assert decode(encode(frame)) == frame
    assert json.loads(encode(frame))["m"]["type"] == kind.__name__


def test_a_whole_world_survives_the_wire() -> None:
    state = RunState(
        id="r", name="x.py", phase="running", folder="/r", spec=RunSpec(job="script", path="/x.py"), loss=0.5,
        loss_history=((1, 0.9), (2, 0.5)), nodes=(NodeStep(node="grün 🌼", share=3),),
        scores={"rmse": 1.0, "baseline": {"rmse": 2.0}},
    )  # fmt: skip
    frame = Frame(m=messages.World(snapshot=Snapshot(self_id="a", role="head", nodes=(), run=state)))
    assert decode(encode(frame)) == frame


GOOD = {"m": {"type": "Refused", "reason": "no"}, "re": 3}


def test_what_is_left_out_takes_its_default() -> None:
    assert decode(json.dumps(GOOD)) == Frame(m=Refused(reason="no", remedy="", exit=1), re=3)


@pytest.mark.parametrize(
    "frame",
    [
        {},
        {"m": {}},
        {"m": None},
        {"m": {"type": "Exec", "code": "1"}},
        {"m": {"type": "Message"}},
        {"m": {"type": 3}},
        {"m": {"type": "Ping", "extra": 1}},
        {"m": {"type": "Refused"}},
        {"m": {"type": "Refused", "reason": 3}},
        {"m": {"type": "Refused", "reason": "x", "exit": "1"}},
        {"m": {"type": "Refused", "reason": None}},
        {"m": {"type": "Launch", "spec": {"job": "shell"}}},
        {"m": {"type": "PrepareRun", "run": "r", "files": [["a"]]}},
        {"m": {"type": "Ping"}, "id": "1"},
        {"m": {"type": "Ping"}, "id": 1.5},
        [],
        "Ping",
        None,
    ],
)
def test_anything_else_is_refused(frame: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(json.dumps(frame))


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b'{"m": {"type": "Ping"}} x', b"NaN", b"\x80\x04K\x01."])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(text)


def test_a_number_that_is_none_travels_as_unknown() -> None:
    frame = Frame(m=RankReport(run="r", seat=0, report={"loss": float("nan")}))
    sent = decode(encode(frame)).m
    assert isinstance(sent, RankReport)
    assert sent.report == {"loss": None}
