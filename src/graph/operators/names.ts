// The operators that Asteroid knows, of ONNX's default domain at the canonical opset. Tables elsewhere (meaning, gradients) are
// records over this type: an operator added here does not compile until each of them has its entry.

export type ElementwiseName =
  | 'Abs' | 'Acos' | 'Add' | 'And' | 'Asin' | 'Atan' | 'BitShift' | 'Cast' | 'CastLike' | 'Ceil' | 'Celu' | 'Clip' | 'Cos' | 'Cosh' | 'Div' | 'Elu' | 'Equal'
  | 'Erf' | 'Exp' | 'Floor' | 'Gelu' | 'Greater' | 'GreaterOrEqual' | 'HardSigmoid' | 'HardSwish' | 'Identity' | 'IsInf' | 'IsNaN'
  | 'LeakyRelu' | 'Less' | 'LessOrEqual' | 'Log' | 'Max' | 'Mean' | 'Min' | 'Mish' | 'Mod' | 'Mul' | 'Neg' | 'Not' | 'Or' | 'PRelu' | 'Pow'
  | 'Reciprocal' | 'Relu' | 'Round' | 'Selu' | 'Sigmoid' | 'Sign' | 'Sin' | 'Sinh' | 'Softplus' | 'Softsign' | 'Sqrt' | 'Sub' | 'Sum' | 'Tan'
  | 'Tanh' | 'ThresholdedRelu' | 'Where' | 'Xor';

export type ReductionName =
  | 'ArgMax' | 'ArgMin' | 'CumSum' | 'ReduceL1' | 'ReduceL2' | 'ReduceLogSum' | 'ReduceLogSumExp' | 'ReduceMax' | 'ReduceMean' | 'ReduceMin'
  | 'ReduceProd' | 'ReduceSum' | 'ReduceSumSquare';

export type ShapeName =
  | 'Concat' | 'Constant' | 'ConstantOfShape' | 'DepthToSpace' | 'Expand' | 'EyeLike' | 'Flatten' | 'Gather' | 'GatherElements' | 'GatherND' | 'OneHot'
  | 'Pad' | 'Range' | 'Reshape' | 'ScatterElements' | 'ScatterND' | 'Shape' | 'Size' | 'Slice' | 'SpaceToDepth' | 'Split' | 'Squeeze' | 'Tile'
  | 'Transpose' | 'Trilu' | 'Unsqueeze';

export type NeuralName =
  | 'AveragePool' | 'BatchNormalization' | 'Conv' | 'ConvTranspose' | 'Dropout' | 'Gemm' | 'GlobalAveragePool' | 'GlobalMaxPool'
  | 'GroupNormalization' | 'InstanceNormalization' | 'LayerNormalization' | 'LogSoftmax' | 'LpNormalization' | 'MatMul' | 'MaxPool' | 'Softmax';

export type OperatorName = ElementwiseName | ReductionName | ShapeName | NeuralName;
