"""Figures of cores and chips, as scripts/bench/calibration/calibrate.py fitted them to
736 published latencies of ncnn (its benchmark's table, commit a4d2ea1). It writes this file.
"""

from __future__ import annotations

# Cycles per vector instruction, per load or store, per other one, per line that the first cache
# fetches; nanoseconds per line from memory.
CORES: dict[str, tuple[float, float, float, float, float]] = {
    "cortex-a7": (3.842, 1.34, 0.6397, 9.696, 24.04),
    "cortex-a53": (1.487, 2.431, 0.467, 3.17, 8.55),
    "cortex-a55": (1.214, 4.701, 0.5401, 3.515, 5.788),
    "cortex-a57": (1.086, 0.4192, 0.271, 7.333, 11.83),
    "cortex-a72": (0.992, 0.3997, 0.2607, 7.855, 12.25),
    "cortex-a73": (1.182, 0.3952, 0.2537, 7.63, 12.73),
    "cortex-a76": (0.5422, 0.342, 0.1973, 3.207, 3.444),
    "cortex-a78": (0.4608, 0.3844, 0.2368, 3.01, 3.635),
}

# Of a core on a chip, factors: of its times, of nanoseconds per line, of the rate that is reached.
CHIPS: dict[tuple[str, str], tuple[float, float, float]] = {
    ("allwinner-h616", "cortex-a53"): (0.9863, 1, 1.114),
    ("amlogic-a311d", "cortex-a73"): (1.053, 1.025, 0.7378),
    ("bcm2711", "cortex-a72"): (1.06, 0.9936, 0.4346),
    ("bcm2712", "cortex-a76"): (0.9717, 1.039, 0.504),
    ("bcm2837", "cortex-a53"): (0.9717, 1.016, 1.165),
    ("imx7d", "cortex-a7"): (0.9633, 0.9807, 1.166),
    ("rk3328", "cortex-a53"): (0.9871, 1, 1.155),
    ("rk3399", "cortex-a53"): (1.068, 1.022, 0.8389),
    ("rk3399", "cortex-a72"): (0.9959, 1.007, 1),
    ("rk3566", "cortex-a55"): (0.9899, 1, 1.08),
    ("rk3568", "cortex-a55"): (1.059, 1.016, 0.8299),
    ("rk3588", "cortex-a55"): (0.8754, 0.8658, 1.193),
    ("rk3588", "cortex-a76"): (1.032, 0.9111, 1.2),
    ("snapdragon410", "cortex-a53"): (0.9845, 1.09, 1.825),
    ("tegra210", "cortex-a57"): (1.018, 0.9782, 0.9122),
    ("tegra234", "cortex-a78"): (0.999, 0.9799, 1),
}

REACHED = 0.8273  # the part of memory's peak rate that threads get together
SERIAL = 0.09678  # the part of a layer that threads do not share
JOIN = 61763  # cycles that it takes to start them and to wait for the last
INTERVAL = (0.7978, 1.29)  # held 86% of rows, each board left out
