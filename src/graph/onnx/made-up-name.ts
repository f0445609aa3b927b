// Names that exporters generate for values without a name in the source.

/** Numbers, folded values, constants: `val_12`, `onnx::MatMul_34`, `/layer/Constant_output_0`, `56`. */
export const madeUpName: RegExp = /^(val_\d+|onnx::.*|.*[Cc]onstant.*|\d+)$/;
