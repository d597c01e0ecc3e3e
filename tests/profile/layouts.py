"""Files laid out as TPUs and GPUs leave them, written by hand: no such device is here.

Names of planes, lines and stats are those of openxla/xla (tsl/profiler/utils/xplane_schema.cc).
"""

from __future__ import annotations

from tests.profile.xspace_writer import Kind, Plane, xspace

MATMUL = Kind(
    "%fusion.1 = bf16[8,8]{1,0:T(8,128)} fusion(bf16[8,8]{1,0} %p0, bf16[8,8]{1,0} %p1), kind=kOutput, calls=%f1",
    {
        "hlo_category": "convolution fusion",
        "flops": 30_000,
        "bytes_accessed": 2_000,
        "tf_op": "jit(step)/jvp()/dot_general",
        "source": "model.py:7",
    },
)
NORM = Kind(
    "%fusion.2 = bf16[8]{0} fusion(bf16[8]{0} %p2), kind=kLoop, calls=%f2",
    {"hlo_category": "loop fusion", "flops": 77, "bytes_accessed": 4_000, "tf_op": "jit(step)/transpose(jvp())/mul"},
)
LOOP = Kind("%while.3 = (s32[]) while((s32[]) %t), condition=%c, body=%b", {"hlo_category": "while"})
START = Kind(
    "%all-gather-start.1 = (bf16[4]{0}, bf16[8]{0}) all-gather-start(bf16[4]{0} %p3), dimensions={0}",
    {"hlo_category": "all-gather-start"},
)
DONE = Kind(
    "%all-gather-done.9 = bf16[8]{0} all-gather-done((bf16[4]{0}, bf16[8]{0}) %all-gather-start.1)",
    {"hlo_category": "all-gather-done"},
)
COPY = Kind("%copy.4 = bf16[8]{0} copy(bf16[8]{0} %fusion.2)", {"hlo_category": "data formatting"})
INFEED = Kind("%infeed.5 = (bf16[8]{0}, token[]) infeed(token[] %a)", {"hlo_category": "infeed"})
STEP_US = 100.0


def tpu_plane(number: int, steps: int = 3, slower: float = 0.0) -> Plane:
    """Steps of 100 us. Of the first 88: a matmul of 40, the start of a gather of 1, another op of 20, the wait for the
    gather of 14, a copy of 5, an infeed of 8. A loop holds all to the 61st. `slower` lengthens matmul and pause."""
    ops, others, modules, marks = [], [], [], []
    for step in range(steps):
        t = step * STEP_US * (1.0 if not slower else (STEP_US + slower) / STEP_US)
        u = t + slower
        ops += [(t, u + 61, LOOP, {}), (t, u + 40, MATMUL, {}), (u + 40, u + 41, START, {}), (u + 41, u + 61, NORM, {})]
        ops += [(u + 61, u + 75, DONE, {}), (u + 75, u + 80, COPY, {}), (u + 80, u + 88, INFEED, {})]
        others.append((u + 40, u + 75, START, {}))
        modules += [(t, u + 88, "jit_step(7)", {}), (u + 90, u + 90.1, "jit_add(9)", {})]
        marks += [(t, u + 88, str(2 * step), {}), (u + 90, u + 90.1, str(2 * step + 1), {})]
    return Plane(
        f"/device:TPU:{number}",
        {"Steps": marks, "XLA Modules": modules, "XLA Ops": ops, "Async XLA Ops": others},
        {
            "device_type_string": "TPU v5p",
            "peak_teraflops_per_second": 0.0004,
            "peak_hbm_bw_gigabytes_per_second": 0.1,
        },
    )


def tpu(devices: int = 1, slowest: float = 0.0) -> bytes:
    """One host's file; the last device's matmul is longer by `slowest` us."""
    planes = [tpu_plane(number, slower=slowest if number == devices - 1 else 0.0) for number in range(devices)]
    return xspace(*planes, Plane("/host:CPU"), hostname="t1v-n-0")


def gpu(steps: int = 3) -> bytes:
    """Steps of 50 us: a matmul of 20, from its middle on a gather of 20 on another stream, then a device copy of 4, a
    pause of 1, another op of 10, a pause of 5. Derived lines repeat what the streams hold."""
    compute, wires, copies = [], [], []
    for step in range(steps):
        t = 50.0 * step
        of = {"hlo_module": "jit_step", "program_id": 3}
        compute.append((t, t + 20, "nvjet_hsh_128x128_64x4_1x2_h_bz_NNT", {**of, "hlo_op": "gemm_fusion_dot.1"}))
        compute.append((t + 35, t + 45, "loop_add_fusion", {**of, "hlo_op": "loop_add_fusion"}))
        wires.append((t + 10, t + 30, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", {}))
        copies.append((t + 30, t + 34, "MemcpyD2D", {"memcpy_details": "kind:MemcpyD2D"}))
    return xspace(
        Plane(
            "/device:GPU:0",
            {
                "Stream #13(Compute)": compute,
                "Stream #21(Compute)": wires,
                "Stream #22(MemcpyD2D)": copies,
                "XLA Ops": [(0.0, 150.0, "gemm_fusion_dot.1", {})],
            },
            {"gpu_device_name": "NVIDIA H100 80GB HBM3"},
        )
    )
