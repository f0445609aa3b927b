// Why a file holds nothing to train.

import { isQuantizing } from '../quantized.ts';
import { type GraphProto, type NodeProto, TensorProto_DataType } from './generated/onnx_pb.ts';
import type { ImportedModel } from './import.ts';

const floats: ReadonlySet<number> = new Set([
  TensorProto_DataType.FLOAT,
  TensorProto_DataType.DOUBLE,
  TensorProto_DataType.FLOAT16,
  TensorProto_DataType.BFLOAT16,
]);

/** The reason and the mend, as the end of a sentence that begins with the file. For a model without parameters. */
export function noWeightsReason({ proto, choices }: Pick<ImportedModel, 'proto' | 'choices'>): string {
  const nodes = proto.graph?.node ?? [];
  const quantized = nodes.find(({ opType }) => isQuantizing(opType));
  if (quantized !== undefined)
    return (
      `holds no weights that could be trained: they are quantized (${quantized.opType}); ` +
      'export the model before it is quantized.'
    );
  const holder = nodes.find((node) => bodies(node).some(hasWeights));
  if (holder !== undefined)
    return (
      `holds its weights inside node "${holder.name}" (${holder.opType}), which runs as the data decide: ` +
      'export the model without control flow, for the case to be trained.'
    );
  const [first] = choices;
  if (first !== undefined)
    return (
      `holds no tensor that is taken for a weight (${first.name}: ${first.why}): ` +
      'give --train PATTERN with the names of those that are, which asteroid inspect lists.'
    );
  return 'holds no weights that could be trained: export the model with its weights as float32 initializers.';
}

function bodies({ attribute }: NodeProto): readonly GraphProto[] {
  return attribute.flatMap(({ g, graphs }) => [...(g === undefined ? [] : [g]), ...graphs]);
}

/** True if a graph, or one inside it, has float tensors of more than one element. */
function hasWeights({ initializer, node }: GraphProto): boolean {
  const isWeight = ({ dataType, dims }: { dataType: number; dims: readonly bigint[] }): boolean =>
    floats.has(dataType) && dims.some((size) => size > 1n);
  return (
    initializer.some(isWeight) ||
    node.some((one) => one.attribute.some(({ t }) => t !== undefined && isWeight(t)) || bodies(one).some(hasWeights))
  );
}
