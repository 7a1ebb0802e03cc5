"""A convolutional network in TVMScript, with TVM's names of operators."""
import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((1, 3, 16, 16), dtype="float32"),
        w: R.Tensor((8, 3, 3, 3), dtype="float32"),
        gamma: R.Tensor((8,), dtype="float32"),
        fc: R.Tensor((10, 8), dtype="float32"),
    ) -> R.Tensor((1, 10), dtype="float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            lv: R.Tensor((1, 8, 16, 16), dtype="float32") = R.nn.conv2d(x, w, strides=[1, 1], padding=[1, 1, 1, 1])
            lv1 = R.nn.batch_norm(lv, gamma, gamma, gamma, gamma, axis=1)
            lv2 = lv1[0]
            lv3 = R.nn.relu(lv2)
            lv4 = R.nn.max_pool2d(lv3, pool_size=[2, 2], strides=[2, 2])
            lv5 = R.mean(lv4, axis=[2, 3])
            lv6 = R.matmul(lv5, R.permute_dims(fc, axes=None), out_dtype="void")
            gv = R.nn.log_softmax(lv6, axis=-1)
            R.output(gv)
        return gv


ex = relax.build(Module, tvm.target.Target("llvm"))
vm = relax.VirtualMachine(ex, tvm.cpu(0))
rng = np.random.default_rng(0)
args = [rng.uniform(0.1, 1, s).astype("float32") for s in ((1, 3, 16, 16), (8, 3, 3, 3), (8,), (10, 8))]
out = vm["main"](*map(tvm.nd.array, args))
np.testing.assert_allclose(np.exp(out.numpy()).sum(), 1, rtol=1e-4)
timed = vm.time_evaluator("main", tvm.cpu(0), number=2, repeat=2)(*map(tvm.nd.array, args))
print(timed.mean)
