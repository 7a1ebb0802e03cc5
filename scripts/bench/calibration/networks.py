"""The networks of published latencies, as ncnn reads them: layer lists written down here.

Weights do not decide what a kernel executes, so there are none: a network is its text alone, and
its weights are zeros. Layers are as published: Krizhevsky 2012 (AlexNet), Simonyan 2014 (VGG-16),
Szegedy 2014 (GoogLeNet), He 2015 (ResNet; ResNet-50 strides in its 1x1 layers), Iandola 2016
(SqueezeNet 1.1), Howard 2017 and 2019, Sandler 2018 (MobileNets), Zhang 2017 and Ma 2018
(ShuffleNets), Tan 2018 (MnasNet-B1), Cai 2018 (ProxylessNAS mobile), Tan 2019 and 2021
(EfficientNets), Radosavovic 2020 (RegNetY), Liu 2015 (SSD), Bochkovskiy 2020 (YOLOv4-tiny).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

RELU, LEAKY = "9=1", "9=2 -23310=1,1.000000e-01"


@dataclass(frozen=True, slots=True)
class Value:
    """What a layer made, and its extent: (channels, height, width), or (features,)."""

    name: str
    shape: tuple[int, ...]


@dataclass
class Network:
    """Layers in order: type, inputs, outputs, parameters. Multiply-accumulates as a check."""

    layers: list[tuple[str, tuple[str, ...], tuple[str, ...], str]] = field(default_factory=list)
    macs: int = 0
    shape: tuple[int, ...] = ()

    def input(self, *shape: int) -> Value:
        self.shape = shape
        self.layers.append(("Input", (), ("data",), ""))
        return Value("data", shape)

    def add(self, kind: str, inputs: Iterable[Value], shape: tuple[int, ...], text: str) -> Value:
        value = Value(f"v{len(self.layers)}", shape)
        self.layers.append((kind, tuple(v.name for v in inputs), (value.name,), text))
        return value

    def conv(
        self,
        x: Value,
        out: int,
        k: int,
        stride: int = 1,
        act: str = RELU,
        group: int = 1,
        pad: int | None = None,
    ) -> Value:
        channels, height, width = x.shape
        pad = k // 2 if pad is None else pad
        h, w = ((n + 2 * pad - k) // stride + 1 for n in (height, width))
        weights = channels // group * out * k * k
        self.macs += weights * h * w
        grouped = f" 7={group}" if group > 1 else ""
        kind = "ConvolutionDepthWise" if group > 1 else "Convolution"
        text = f"0={out} 1={k} 3={stride} 4={pad} 5=1 6={weights}{grouped} {act}"
        return self.add(kind, (x,), (out, h, w), text)

    def depthwise(self, x: Value, k: int, stride: int = 1, act: str = RELU) -> Value:
        return self.conv(x, x.shape[0], k, stride, act, group=x.shape[0])

    def full(self, x: Value, out: int, act: str = "") -> Value:
        size = out
        for extent in x.shape:
            size *= extent
        self.macs += size
        return self.add("InnerProduct", (x,), (out,), f"0={out} 1=1 2={size} {act}")

    def pool(
        self, x: Value, k: int, stride: int, pad: int = 0, average: bool = False, full: bool = True
    ) -> Value:
        channels, height, width = x.shape
        up = stride - 1 if full else 0
        h, w = ((n + 2 * pad - k + up) // stride + 1 for n in (height, width))
        text = f"0={int(average)} 1={k} 2={stride} 3={pad} 5={int(not full)}"
        return self.add("Pooling", (x,), (channels, h, w), text)

    def mean(self, x: Value) -> Value:
        return self.add("Pooling", (x,), x.shape[:1], "0=1 4=1")

    def each(self, kind: str, x: Value, text: str = "") -> Value:
        return self.add(kind, (x,), x.shape, text)

    def plus(self, x: Value, y: Value) -> Value:
        return self.add("BinaryOp", (x, y), x.shape, "0=0")

    def times(self, x: Value, y: Value) -> Value:
        return self.add("BinaryOp", (x, y), x.shape, "0=2")

    def concat(self, *values: Value) -> Value:
        channels = sum(v.shape[0] for v in values)
        return self.add("Concat", values, (channels, *values[0].shape[1:]), "0=0")

    def halves(self, x: Value) -> tuple[Value, Value]:
        channels, *rest = x.shape
        made = [Value(f"v{len(self.layers)}{c}", (channels // 2, *rest)) for c in "ab"]
        names = (made[0].name, made[1].name)
        self.layers.append(("Slice", (x.name,), names, "-23300=2,-233,-233 1=0"))
        return made[0], made[1]

    @property
    def starts(self) -> list[int]:
        """How often ncnn starts its threads, per layer: the groups of a convolution run one after
        the other, each on all threads, unless each is of one channel."""
        found = []
        for kind, _, _, text in self.layers:
            values = dict(word.split("=") for word in text.split())
            grouped = kind == "ConvolutionDepthWise" and values["7"] != values["0"]
            found.append(int(values["7"]) if grouped else 1)
        return found[1:]  # without the input

    def text(self) -> str:
        """As ncnn's .param files: what is read by several layers goes through a Split."""
        readers = Counter(name for _, inputs, _, _ in self.layers for name in inputs)
        lines, blobs, given = [], 0, Counter[str]()
        for number, (kind, inputs, outputs, text) in enumerate(self.layers):
            names = []
            for name in inputs:
                names.append(f"{name}_{given[name]}" if readers[name] > 1 else name)
                given[name] += 1
            counts = f"{len(names)} {len(outputs)}"
            lines.append(" ".join((kind, f"l{number}", counts, *names, *outputs, text)))
            blobs += len(outputs)
            for name in outputs:
                if readers[name] > 1:
                    copies = [f"{name}_{i}" for i in range(readers[name])]
                    lines.append(
                        " ".join(("Split", f"s_{name}", f"1 {len(copies)}", name, *copies))
                    )
                    blobs += len(copies)
        return "\n".join(("7767517", f"{len(lines)} {blobs}", *lines, ""))


def _excited(n: Network, x: Value, squeezed: int, gate: str, act: str) -> Value:
    """Squeeze and excitation: channels scaled by what two layers make of their means."""
    y = n.full(n.mean(x), squeezed, RELU if act == RELU else "")
    if act != RELU:
        y = n.each(act, y)
    return n.times(x, n.each(gate, n.full(y, x.shape[0])))


def _activated(n: Network, x: Value, act: str) -> Value:
    """Activations other than ReLU are layers of their own in the published networks."""
    return x if act == RELU else n.each(act, x)


def squeezenet(n: Network, extent: int = 227) -> None:
    x = n.pool(n.conv(n.input(3, extent, extent), 64, 3, 2, pad=0), 3, 2)
    for number, (squeeze, expand) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        if number in (2, 4):
            x = n.pool(x, 3, 2)
        s = n.conv(x, squeeze, 1)
        x = n.concat(n.conv(s, expand, 1), n.conv(s, expand, 3))
    n.each("Softmax", n.mean(n.conv(x, 1000, 1)))


def _mobilenet(n: Network, extent: int) -> tuple[Value, Value]:
    """To the end of the features; the first is where the extent is a sixteenth of the input's."""
    x = n.conv(n.input(3, extent, extent), 32, 3, 2)
    middle = x
    for out, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5,
                        (1024, 2), (1024, 1)):  # fmt: skip
        if out == 1024 and stride == 2:
            middle = x
        x = n.conv(n.depthwise(x, 3, stride), out, 1)
    return middle, x


def mobilenet(n: Network) -> None:
    n.each("Softmax", n.full(n.mean(_mobilenet(n, 224)[1]), 1000))


def mobilenet_ssd(n: Network) -> None:
    middle, x = _mobilenet(n, 300)
    seen = [middle, x]
    for squeezed, out in ((256, 512), (128, 256), (128, 256), (64, 128)):
        x = n.conv(n.conv(x, squeezed, 1), out, 3, 2)
        seen.append(x)
    for number, x in enumerate(seen):
        boxes = 3 if number == 0 else 6
        for out in (4 * boxes, 21 * boxes):
            y = n.conv(x, out, 1, act="")
            size = y.shape[0] * y.shape[1] * y.shape[2]
            y = n.add("Permute", (y,), (*y.shape[1:], y.shape[0]), "0=3")
            n.add("Flatten", (y,), (size,), "")


def _inverted(
    n: Network, x: Value, expanded: int, out: int, k: int, stride: int,
    act: str = RELU, squeezed: int = 0, gate: str = "Sigmoid",
) -> Value:  # fmt: skip
    fused = RELU if act == RELU else ""
    y = x
    if expanded != x.shape[0]:
        y = _activated(n, n.conv(y, expanded, 1, act=fused), act)
    y = _activated(n, n.depthwise(y, k, stride, act=fused), act)
    if squeezed:
        y = _excited(n, y, squeezed, gate, RELU if gate == "HardSigmoid" else act)
    y = n.conv(y, out, 1, act="")
    return n.plus(x, y) if stride == 1 and x.shape == y.shape else y


def mobilenet_v2(n: Network) -> None:
    x = n.conv(n.input(3, 224, 224), 32, 3, 2)
    for factor, out, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for turn in range(count):
            x = _inverted(n, x, x.shape[0] * factor, out, 3, 1 if turn else stride)
    n.each("Softmax", n.full(n.mean(n.conv(x, 1280, 1)), 1000))


def mobilenet_v3(n: Network) -> None:
    swish = "HardSwish"
    x = n.each(swish, n.conv(n.input(3, 224, 224), 16, 3, 2, act=""))
    for k, expanded, out, excited, act, stride in (
        (3, 16, 16, 0, RELU, 1), (3, 64, 24, 0, RELU, 2), (3, 72, 24, 0, RELU, 1),
        (5, 72, 40, 1, RELU, 2), (5, 120, 40, 1, RELU, 1), (5, 120, 40, 1, RELU, 1),
        (3, 240, 80, 0, swish, 2), (3, 200, 80, 0, swish, 1), (3, 184, 80, 0, swish, 1),
        (3, 184, 80, 0, swish, 1), (3, 480, 112, 1, swish, 1), (3, 672, 112, 1, swish, 1),
        (5, 672, 160, 1, swish, 2), (5, 960, 160, 1, swish, 1), (5, 960, 160, 1, swish, 1),
    ):  # fmt: skip
        squeezed = expanded // 4 if excited else 0
        x = _inverted(n, x, expanded, out, k, stride, act, squeezed, "HardSigmoid")
    x = n.mean(n.each(swish, n.conv(x, 960, 1, act="")))
    n.each("Softmax", n.full(n.each(swish, n.full(x, 1280)), 1000))


def mnasnet(n: Network) -> None:
    x = n.conv(n.input(3, 224, 224), 32, 3, 2)
    x = _inverted(n, x, 32, 16, 3, 1)
    for factor, out, count, stride, k in (
        (3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3), (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ):  # fmt: skip
        for turn in range(count):
            x = _inverted(n, x, x.shape[0] * factor, out, k, 1 if turn else stride)
    n.each("Softmax", n.full(n.mean(n.conv(x, 1280, 1)), 1000))


def proxylessnasnet(n: Network) -> None:
    x = n.conv(n.input(3, 224, 224), 32, 3, 2)
    x = _inverted(n, x, 32, 16, 3, 1)
    for out, stride, blocks in (
        (32, 2, ((5, 3), (3, 3))),
        (40, 2, ((7, 3), (3, 3), (5, 3), (5, 3))),
        (80, 2, ((7, 6), (5, 3), (5, 3), (5, 3))),
        (96, 1, ((5, 6), (5, 3), (5, 3), (5, 3))),
        (192, 2, ((7, 6), (7, 6), (7, 3), (7, 3))),
        (320, 1, ((7, 6),)),
    ):
        for turn, (k, factor) in enumerate(blocks):
            x = _inverted(n, x, x.shape[0] * factor, out, k, 1 if turn else stride)
    n.each("Softmax", n.full(n.mean(n.conv(x, 1280, 1)), 1000))


def efficientnet_b0(n: Network) -> None:
    x = n.each("Swish", n.conv(n.input(3, 224, 224), 32, 3, 2, act=""))
    for factor, out, count, stride, k in (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    ):  # fmt: skip
        for turn in range(count):
            channels = x.shape[0]
            x = _inverted(
                n, x, channels * factor, out, k, 1 if turn else stride, "Swish", channels // 4
            )
    x = n.each("Swish", n.conv(x, 1280, 1, act=""))
    n.each("Softmax", n.full(n.mean(x), 1000))


def efficientnetv2_b0(n: Network) -> None:
    x = n.each("Swish", n.conv(n.input(3, 224, 224), 32, 3, 2, act=""))
    for factor, out, count, stride in ((1, 16, 1, 1), (4, 32, 2, 2), (4, 48, 2, 2)):
        for turn in range(count):
            step = 1 if turn else stride
            y = n.each("Swish", n.conv(x, x.shape[0] * factor, 3, step, act=""))
            if factor > 1:
                y = n.conv(y, out, 1, act="")
            elif out != y.shape[0]:
                n.layers.pop(), n.layers.pop()
                y = n.each("Swish", n.conv(x, out, 3, step, act=""))
            x = n.plus(x, y) if x.shape == y.shape else y
    for factor, out, count, stride in ((4, 96, 3, 2), (6, 112, 5, 1), (6, 192, 8, 2)):
        for turn in range(count):
            channels = x.shape[0]
            x = _inverted(
                n, x, channels * factor, out, 3, 1 if turn else stride, "Swish", channels // 4
            )
    x = n.each("Swish", n.conv(x, 1280, 1, act=""))
    n.each("Softmax", n.full(n.mean(x), 1000))


def regnety_400m(n: Network) -> None:
    x = n.conv(n.input(3, 224, 224), 32, 3, 2)
    for out, count in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for turn in range(count):
            stride, before = (1 if turn else 2), x.shape[0]
            y = n.conv(n.conv(x, out, 1), out, 3, stride, group=out // 8)
            y = n.conv(_excited(n, y, before // 4, "Sigmoid", RELU), out, 1, act="")
            if turn == 0:
                x = n.conv(x, out, 1, stride, act="", pad=0)
            x = n.each("ReLU", n.plus(x, y))
    n.each("Softmax", n.full(n.mean(x), 1000))


def shufflenet(n: Network) -> None:
    x = n.pool(n.conv(n.input(3, 224, 224), 24, 3, 2), 3, 2)
    for out, count in ((240, 4), (480, 8), (960, 4)):
        for turn in range(count):
            first = x.shape[0] == 24
            made = out if turn else out - x.shape[0]
            y = n.conv(x, out // 4, 1, group=1 if first else 3)
            y = n.depthwise(n.each("ShuffleChannel", y, "0=3"), 3, 1 if turn else 2, act="")
            y = n.conv(y, made, 1, act="", group=3)
            if turn:
                x = n.each("ReLU", n.plus(x, y))
            else:
                short = n.pool(x, 3, 2, average=True)
                x = n.each("ReLU", n.concat(short, y))
    n.each("Softmax", n.full(n.mean(x), 1000))


def _shufflenet_v2(n: Network, extent: int) -> list[Value]:
    x = n.pool(n.conv(n.input(3, extent, extent), 24, 3, 2), 3, 2)
    stages = []
    for out, count in ((116, 4), (232, 8), (464, 4)):
        for turn in range(count):
            half = out // 2
            if turn:
                kept, y = n.halves(x)
            else:
                kept, y = n.conv(n.depthwise(x, 3, 2, act=""), half, 1), x
            y = n.depthwise(n.conv(y, half, 1), 3, 1 if turn else 2, act="")
            x = n.each("ShuffleChannel", n.concat(kept, n.conv(y, half, 1)), "0=2")
        stages.append(x)
    return stages


def shufflenet_v2(n: Network) -> None:
    x = n.conv(_shufflenet_v2(n, 224)[-1], 1024, 1)
    n.each("Softmax", n.full(n.mean(x), 1000))


def googlenet(n: Network) -> None:
    x = n.pool(n.conv(n.input(3, 224, 224), 64, 7, 2), 3, 2)
    lrn = "0=0 1=5 2=1.000000e-04 3=7.500000e-01"
    x = n.conv(n.conv(n.each("LRN", x, lrn), 64, 1), 192, 3)
    x = n.pool(n.each("LRN", x, lrn), 3, 2)
    for number, (a, b0, b1, c0, c1, d) in enumerate((
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
    )):  # fmt: skip
        if number in (2, 7):
            x = n.pool(x, 3, 2)
        x = n.concat(
            n.conv(x, a, 1),
            n.conv(n.conv(x, b0, 1), b1, 3),
            n.conv(n.conv(x, c0, 1), c1, 5),
            n.conv(n.pool(x, 3, 1, 1), d, 1),
        )
    n.each("Softmax", n.full(n.mean(x), 1000))


def alexnet(n: Network) -> None:
    lrn = "0=0 1=5 2=1.000000e-04 3=7.500000e-01"
    x = n.pool(n.each("LRN", n.conv(n.input(3, 227, 227), 96, 11, 4, pad=0), lrn), 3, 2)
    x = n.pool(n.each("LRN", n.conv(x, 256, 5, group=2), lrn), 3, 2)
    x = n.conv(n.conv(n.conv(x, 384, 3), 384, 3, group=2), 256, 3, group=2)
    x = n.full(n.full(n.pool(x, 3, 2), 4096, RELU), 4096, RELU)
    n.each("Softmax", n.full(x, 1000))


def vgg16(n: Network) -> None:
    x = n.input(3, 224, 224)
    for out, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = n.conv(x, out, 3)
        x = n.pool(x, 2, 2)
    x = n.full(n.full(x, 4096, RELU), 4096, RELU)
    n.each("Softmax", n.full(x, 1000))


def _resnet(n: Network, depths: tuple[int, ...], narrow: bool) -> None:
    x = n.pool(n.conv(n.input(3, 224, 224), 64, 7, 2), 3, 2)
    for stage, count in enumerate(depths):
        middle = 64 << stage
        out = middle * 4 if narrow else middle
        for turn in range(count):
            stride = 2 if stage and not turn else 1
            if narrow:
                y = n.conv(n.conv(x, middle, 1, stride, pad=0), middle, 3)
                y = n.conv(y, out, 1, act="")
            else:
                y = n.conv(n.conv(x, out, 3, stride), out, 3, act="")
            if x.shape != y.shape:
                x = n.conv(x, out, 1, stride, act="", pad=0)
            x = n.each("ReLU", n.plus(x, y))
    n.each("Softmax", n.full(n.mean(x), 1000))


def resnet18(n: Network) -> None:
    _resnet(n, (2, 2, 2, 2), narrow=False)


def resnet50(n: Network) -> None:
    _resnet(n, (3, 4, 6, 3), narrow=True)


def yolov4_tiny(n: Network) -> None:
    x = n.conv(n.conv(n.input(3, 416, 416), 32, 3, 2, LEAKY), 64, 3, 2, LEAKY)
    middle = x
    for out in (64, 128, 256):
        x = n.conv(x, out, 3, 1, LEAKY)
        y = n.conv(n.halves(x)[1], out // 2, 3, 1, LEAKY)
        y = n.concat(n.conv(y, out // 2, 3, 1, LEAKY), y)
        middle = n.conv(y, out, 1, 1, LEAKY)
        x = n.pool(n.concat(x, middle), 2, 2)
    x = n.conv(n.conv(x, 512, 3, 1, LEAKY), 256, 1, 1, LEAKY)
    n.conv(n.conv(x, 512, 3, 1, LEAKY), 255, 1, act="")
    y = n.conv(x, 128, 1, 1, LEAKY)
    y = n.add("Interp", (y,), (128, 26, 26), "0=1 1=2.000000e+00 2=2.000000e+00")
    n.conv(n.conv(n.concat(y, middle), 256, 3, 1, LEAKY), 255, 1, act="")


def blazeface(n: Network) -> None:
    """Padding, additions and activations are layers of their own in the published network."""
    below = "0=0 1=2 2=0 3=2"
    x = n.input(3, 128, 128)
    x = n.add("Padding", (x,), (3, 131, 131), "0=1 1=2 2=1 3=2")
    x = n.each("ReLU", n.conv(x, 24, 5, 2, act="", pad=0))
    for out, stride in (
        (24, 1), (28, 1), (32, 2), (36, 1), (42, 1), (48, 2), (56, 1), (64, 1), (72, 1), (80, 1),
        (88, 1), (96, 2), (96, 1), (96, 1), (96, 1),
    ):  # fmt: skip
        channels, height, width = x.shape
        short, y = x, x
        if stride == 2:
            y = n.add("Padding", (x,), (channels, height + 2, width + 2), below)
            short = n.pool(x, 2, 2, full=False)
        pad = 1 if stride == 1 else 0
        y = n.conv(y, channels, 3, stride, act="", group=channels, pad=pad)
        y = n.conv(y, out, 1, act="")
        if out != channels:
            short = n.add("Padding", (short,), y.shape, f"7=0 8={out - channels}")
        x = n.each("ReLU", n.plus(y, short))


NETWORKS: dict[str, Callable[[Network], None]] = {
    "squeezenet": squeezenet,
    "mobilenet": mobilenet,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3": mobilenet_v3,
    "shufflenet": shufflenet,
    "shufflenet_v2": shufflenet_v2,
    "mnasnet": mnasnet,
    "proxylessnasnet": proxylessnasnet,
    "efficientnet_b0": efficientnet_b0,
    "efficientnetv2_b0": efficientnetv2_b0,
    "regnety_400m": regnety_400m,
    "googlenet": googlenet,
    "resnet18": resnet18,
    "alexnet": alexnet,
    "vgg16": vgg16,
    "resnet50": resnet50,
    "mobilenet_ssd": mobilenet_ssd,
    "yolov4-tiny": yolov4_tiny,
    "blazeface": blazeface,
}


# Published with integers of 8 bits as well.
IN_INT8 = (
    "squeezenet", "mobilenet", "googlenet", "resnet18", "vgg16", "resnet50", "mobilenet_ssd",
)  # fmt: skip
INT8 = "_int8"
_WHOLE = {"Convolution": 2, "ConvolutionDepthWise": 1, "InnerProduct": 2}  # ncnn's scale terms
_REQUANTIZED = 100  # is added where the output stays in integers, as ncnn's tools decide it


def _quantized(made: Network) -> None:
    """Products in 8 bits. What one convolution alone reads of another is not made float between."""
    readers: dict[str, list[str]] = {}
    for kind, inputs, _, _ in made.layers:
        for name in inputs:
            readers.setdefault(name, []).append(kind)
    for number, (kind, inputs, outputs, text) in enumerate(made.layers):
        if kind in _WHOLE:
            next_one = readers.get(outputs[0], [])
            stays = len(next_one) == 1 and next_one[0].startswith("Convolution")
            term = _WHOLE[kind] + (_REQUANTIZED if stays else 0)
            made.layers[number] = kind, inputs, outputs, f"{text} 8={term}"


def network(name: str) -> Network:
    made = Network()
    NETWORKS[name.removesuffix(INT8)](made)
    if name.endswith(INT8):
        _quantized(made)
    return made


def names() -> list[str]:
    return [*NETWORKS, *(name + INT8 for name in IN_INT8)]
