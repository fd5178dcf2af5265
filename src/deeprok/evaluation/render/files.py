"""Films as files: a GIF, an MP4 video, or a PNG with a few moments. Each is written whole or not at all."""

from __future__ import annotations

import io
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from deeprok.core.errors import DeeprokError, extra_missing
from deeprok.core.files import read_bytes, write_atomically
from deeprok.evaluation.render.pane import Film

#: The frames of a GIF last whole hundredths of a second, and browsers show those of less than two too slowly.
_FASTEST_GIF = 50.0

#: How long the last frame of a film stays, in seconds.
HOLD = 1.5

#: Moments of a PNG.
_MOMENTS = 5

#: `(film, fps, advance) -> content`: a film as a file of its format.
Encoder = Callable[[Film, float, Callable[[float], None]], bytes]


def shown_steps(film: Film, fps: float, fastest: float) -> list[int]:
    """The steps of a film that are shown: all of them, or as many as a format can show in the same time."""
    rate = min(fps, fastest)
    count = int(film.steps * rate / fps + 1e-9)
    found = [round(i * fps / rate) for i in range(count + 1)]
    return found if found[-1] == film.steps else [*found, film.steps]


def delays(frames: int, rate: float) -> list[int]:
    """How long each frame of a GIF lasts, in hundredths of a second, so that their sum is right; the last one stays."""
    ends = [round(100 * i / rate) for i in range(frames)]
    return [after - before for before, after in itertools.pairwise(ends)] + [round(100 * HOLD)]


def _as_gif(film: Film, fps: float, advance: Callable[[float], None]) -> bytes:
    steps = shown_steps(film, fps, _FASTEST_GIF)
    last = film.frame(steps[-1])
    # One palette for all: that of the first and the last frame, between which hardly a colour is new.
    sample = Image.new("RGB", (last.width, 3 * last.height))
    for i, step in enumerate((steps[0], steps[len(steps) // 2], steps[-1])):
        sample.paste(film.frame(step), (0, i * last.height))
    palette = sample.quantize(255)
    frames = []
    for step in steps:
        frames.append(film.frame(step).quantize(palette=palette, dither=Image.Dither.NONE))
        advance(1 / len(steps))
    buffer = io.BytesIO()
    frames[0].save(
        buffer,
        "GIF",
        save_all=True,
        append_images=frames[1:],
        duration=[10 * delay for delay in delays(len(frames), min(fps, _FASTEST_GIF))],
        loop=0,
        disposal=1,
    )
    return buffer.getvalue()


def _as_mp4(film: Film, fps: float, advance: Callable[[float], None]) -> bytes:
    library = video_library()
    # Or it would run code of ours between fork and exec, which threads such as JAX's may deadlock.
    os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        writer = library.write_frames(
            str(path), film.size, fps=fps, codec="libx264", quality=8, macro_block_size=2, ffmpeg_log_level="error"
        )
        try:
            writer.send(None)
            for frame in _video_frames(film, fps, advance):
                writer.send(frame.tobytes())
        except OSError as error:
            raise DeeprokError(f"the video can't be encoded: {error}") from error
        finally:
            writer.close()
        return read_bytes(path)


def _video_frames(film: Film, fps: float, advance: Callable[[float], None]) -> Iterator[Image.Image]:
    for step in range(film.steps + 1):
        frame = film.frame(step)
        yield frame
        advance(1 / (film.steps + 1))
    for _ in range(round(HOLD * fps)):
        yield frame


def _as_png(film: Film, fps: float, advance: Callable[[float], None]) -> bytes:
    del fps
    buffer = io.BytesIO()
    film.strip(_MOMENTS).save(buffer, "PNG", optimize=True)
    advance(1.0)
    return buffer.getvalue()


ENCODERS: dict[str, Encoder] = {".gif": _as_gif, ".mp4": _as_mp4, ".png": _as_png}


def video_library() -> Any:
    """The package that brings an encoder of videos; a clear error where it is not installed."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise extra_missing("MP4 videos need", "video") from error
    return imageio_ffmpeg


def check_film_file(path: Path) -> None:
    """Raises, before anything is played, unless a film can be written to this file."""
    if path.suffix.lower() not in ENCODERS:
        *others, last = ENCODERS
        raise DeeprokError(f"out is {path}; it must end with {', '.join(others)} or {last}")
    if path.is_dir():
        raise DeeprokError(f"out is {path}, which is a folder")
    if not path.parent.is_dir():
        raise DeeprokError(f"out is {path}, but there is no folder {path.parent}")
    if path.suffix.lower() == ".mp4":
        video_library()


def write_film(film: Film, path: Path, fps: float, advance: Callable[[float], None]) -> None:
    """Writes a film in the format that the file's ending names."""
    write_atomically(path, ENCODERS[path.suffix.lower()](film, fps, advance))
