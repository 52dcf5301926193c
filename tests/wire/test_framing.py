from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.errors import WireError
from everstep.wire.framing import HEADER, MAX_FRAME_BYTES, FrameDecoder, encode_frame


def take_all(decoder: FrameDecoder) -> list[bytes]:
    return list(iter(decoder.take, None))


@given(payloads=st.lists(st.binary(min_size=1, max_size=20), max_size=5), data=st.data())
def test_a_stream_means_the_same_however_it_is_cut(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    taken = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.feed(stream[start:end])
        taken += take_all(decoder)
    decoder.finish()
    assert taken == payloads


def test_every_single_boundary_decodes_equally() -> None:
    payloads = [b"a", b"bc" * 50, b"d"]
    stream = b"".join(map(encode_frame, payloads))
    for cut in range(len(stream) + 1):
        decoder = FrameDecoder()
        taken = []
        for part in (stream[:cut], stream[cut:]):
            decoder.feed(part)
            taken += take_all(decoder)
        assert taken == payloads


def test_a_large_frame_that_comes_byte_by_byte_costs_linear_time() -> None:
    """A decoder that copies what it has with every byte would move 500 GB here and run into the timeout."""
    payload = bytes(1024 * 1024)
    decoder = FrameDecoder()
    for byte in memoryview(encode_frame(payload)):
        decoder.feed(byte.to_bytes())
        if (taken := decoder.take()) is not None:
            break
    assert taken == payload


def test_many_small_frames_at_once_cost_linear_time() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(b"x") * 500_000)
    assert len(take_all(decoder)) == 500_000


def test_the_length_alone_is_enough_to_refuse_an_oversized_frame() -> None:
    decoder = FrameDecoder(limit_bytes=10)
    decoder.feed(HEADER.pack(11))
    with pytest.raises(WireError, match="oversized frame: 11 bytes, the limit is 10"):
        decoder.take()


def test_the_sender_of_an_oversized_frame_is_told() -> None:
    with pytest.raises(WireError, match="oversized frame"):
        encode_frame(bytes(MAX_FRAME_BYTES + 1))


def test_an_empty_frame_is_refused_on_both_sides() -> None:
    with pytest.raises(WireError, match="empty frame"):
        encode_frame(b"")
    decoder = FrameDecoder()
    decoder.feed(HEADER.pack(0))
    with pytest.raises(WireError, match="empty frame"):
        decoder.take()


def test_a_limit_that_is_raised_holds_for_what_has_already_arrived() -> None:
    decoder = FrameDecoder(limit_bytes=2)
    decoder.feed(encode_frame(b"ab") + encode_frame(b"large"))
    assert decoder.take() == b"ab"
    decoder.limit_bytes = 5
    assert decoder.take() == b"large"


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_an_end_within_a_frame_is_not_an_end(cut: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(b"abc")[:cut])
    assert decoder.take() is None
    with pytest.raises(WireError, match=f"truncated frame: the stream ends {cut} bytes into one"):
        decoder.finish()
