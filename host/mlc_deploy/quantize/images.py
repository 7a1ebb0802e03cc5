"""Makes inputs of images, by --preprocess:

resize=256 crop=224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225 layout=NCHW

resize  HEIGHTxWIDTH, or N for the shorter side (default: the model's own height and width)
crop    HEIGHTxWIDTH or N, from the middle (default: none)
scale   pixels are first divided by it (default: 255)
mean    is then subtracted, per channel (default: 0)
std     divides the result, per channel (default: 1)
color   RGB, BGR or GRAY (default: RGB, or GRAY for a model with one channel)
layout  NCHW or NHWC (default: the layout of the model's input)
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files.limits import IMAGE_BYTES, IMAGE_PIXELS, RESIZED_PIXELS, Limit
from ..files.outside import read_file
from .net import Array

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")  # Pillow's others start programs, such as EPS's
AGAIN = "take it out of the folder, or save it again"
COLORS = ("RGB", "BGR", "GRAY")
LAYOUTS = ("NCHW", "NHWC")
KEYS = ("resize", "crop", "scale", "mean", "std", "color", "layout")
EXAMPLE = "--preprocess 'resize=224x224 mean=0.485,0.456,0.406 std=0.229,0.224,0.225'"


@dataclass(frozen=True)
class Preprocess:
    """The preprocessing of images. resize: (height, width), one number for the shorter side, or
    None; crop: (height, width) or None."""

    resize: tuple[int, ...] | None = None
    crop: tuple[int, int] | None = None
    scale: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    color: str | None = None
    layout: str | None = None

    def __str__(self) -> str:
        """The text that `parse` reads, with all known entries."""
        numbers = {"scale": (self.scale,), "mean": self.mean, "std": self.std}
        entries = {
            "resize": "x".join(map(str, self.resize or ())),
            "crop": "x".join(map(str, self.crop or ())),
            **{key: ",".join(f"{n:g}" for n in each) for key, each in numbers.items()},
            "color": self.color,
            "layout": self.layout,
        }
        return " ".join(f"{key}={value}" for key, value in entries.items() if value)


def settled(how: Preprocess, shape: Sequence[int | None]) -> Preprocess:
    """The preprocessing with missing entries filled in from the shape of the model's input."""
    layout = how.layout or _layout(shape)
    height, width, channels = (shape[layout.index(axis)] for axis in "HWC")
    color = how.color or ("GRAY" if channels == 1 else "RGB")
    size = (height, width) if height and width and not how.crop else None
    return replace(how, layout=layout, color=color, resize=how.resize or size)


def parse(text: str) -> Preprocess:
    """The preprocessing that a text says. Raises InputError for text of another form."""
    found: dict[str, Any] = {}
    for part in text.replace(";", " ").split():
        key, equals, value = part.partition("=")
        try:
            if not equals or key not in KEYS or key in found:
                raise ValueError
            found[key] = _value(key, value)
        except ValueError:
            raise InputError(
                f"'{part}' is not a step of preprocessing",
                where=f"--preprocess {text}",
                mend=EXAMPLE,
            ) from None
    return Preprocess(**found)


def _value(key: str, text: str) -> Any:
    """The value of an entry. Raises ValueError."""
    match key:
        case "resize" | "crop":
            sizes = tuple(int(n) for n in text.split("x"))
            if len(sizes) > 2 or min(sizes) < 1:
                raise ValueError(text)
            return sizes if key == "resize" or len(sizes) == 2 else sizes * 2
        case "mean" | "std" | "scale":
            numbers = tuple(float(n) for n in text.split(","))
            if key != "mean" and not all(numbers):
                raise ValueError(text)
            if key == "scale" and len(numbers) > 1:
                raise ValueError(text)
            return numbers[0] if key == "scale" else numbers
        case _:
            if text not in (COLORS if key == "color" else LAYOUTS):
                raise ValueError(text)
            return text


def read_image(path: Path, how: Preprocess) -> Array:
    """An image as float32 [1, C, H, W] or [1, H, W, C]. how: settled. Raises InputError."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError(
            "reading images needs Pillow, which is not installed",
            where=str(path),
            mend="pip install 'mlc-deploy[images]', or .npy files",
        ) from None
    try:
        data = io.BytesIO(read_file(path, IMAGE_BYTES.most))
        with warnings.catch_warnings(), Image.open(data, formats=FORMATS) as opened:
            warnings.simplefilter("ignore")  # of Pillow's own, higher limit, and of odd metadata
            wide, tall = opened.size
            if _fits(path, "has", wide, tall, IMAGE_PIXELS):
                image = opened.convert("L" if how.color == "GRAY" else "RGB")
    except InputError:
        raise
    except Exception as error:  # Pillow's readers raise anything for damaged files
        why = (isinstance(error, OSError) and error.strerror) or " ".join(str(error).split())
        if isinstance(error, UnidentifiedImageError):
            why = f"cannot identify image file '{path}'"
        raise InputError(
            f"the image cannot be read: {why[:120]}", where=str(path), mend=AGAIN
        ) from None
    size = how.resize
    if size is not None:
        if len(size) == 1:  # the shorter side
            least = min(image.size)
            to = tuple(max(1, round(n * size[0] / least)) for n in image.size)
        else:
            to = (size[1], size[0])
        _fits(path, "becomes", to[0], to[1], RESIZED_PIXELS)
        image = image.resize(to, Image.Resampling.BILINEAR)  # type: ignore[arg-type]
    if how.crop is not None:
        tall, wide = how.crop
        _fits(path, "becomes", wide, tall, RESIZED_PIXELS)
        left, top = (image.size[0] - wide) // 2, (image.size[1] - tall) // 2
        image = image.crop((left, top, left + wide, top + tall))
    _fits(path, "becomes", *image.size, RESIZED_PIXELS)
    pixels = np.asarray(image, np.float32)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if how.color == "BGR":
        pixels = pixels[..., ::-1]
    for numbers, name in ((how.mean, "mean"), (how.std, "std")):
        if len(numbers) not in (1, pixels.shape[-1]):
            raise InputError(
                f"{name} has {len(numbers)} numbers, and images are {how.color}",
                where=f"--preprocess '{how}'",
                mend="one number" + (", or one for each channel" if pixels.shape[-1] > 1 else ""),
            )
    mean, std = np.asarray(how.mean, np.float32), np.asarray(how.std, np.float32)
    x = pixels / np.float32(how.scale)
    x -= mean
    x /= std
    x = x.transpose(2, 0, 1) if how.layout == "NCHW" else x
    return np.ascontiguousarray(x[None], np.float32)


def _fits(path: Path, does: str, wide: int, tall: int, most: Limit) -> bool:
    """Raises InputError for an image of too many pixels."""
    if wide * tall > most.most:
        raise InputError(
            f"the image {does} {wide:,} x {tall:,} pixels, and at most {most.most:,} are computed",
            where=str(path),
            mend="take it out of the folder, or make it smaller"
            + (", or another resize and crop" if does == "becomes" else ""),
        )
    return True


def _layout(shape: Sequence[int | None]) -> str:
    return "NHWC" if len(shape) == 4 and shape[-1] in (1, 3) and shape[1] not in (1, 3) else "NCHW"
