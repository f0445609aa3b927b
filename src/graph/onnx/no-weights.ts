// Why a file holds nothing to train.

import { isQuantizing } from '../quantized.ts';
import { type GraphProto, type NodeProto, type TensorProto, TensorProto_DataType } from './generated/onnx_pb.ts';
import type { ImportedModel } from './import.ts';

const floats: ReadonlySet<number> = new Set([
  TensorProto_DataType.FLOAT,
  TensorProto_DataType.DOUBLE,
  TensorProto_DataType.FLOAT16,
  TensorProto_DataType.BFLOAT16,
]);

/** The reason and the fix, as the end of a sentence that begins with the file. For a model without parameters. */
export function noWeightsReason({ proto, choices }: Pick<ImportedModel, 'proto' | 'choices'>): string {
  const nodes = proto.graph?.node ?? [];
  const quantized = nodes.find(({ opType }) => isQuantizing(opType));
  if (quantized !== undefined)
    return (
      `holds no weights that could be trained: they are quantized (${quantized.opType}); ` +
      'export the model before it is quantized.'
    );
  const outer = new Set([
    ...(proto.graph?.initializer ?? []).filter(isWeight).map(({ name }) => name),
    ...nodes.filter(holdsWeight).flatMap(({ output }) => output),
  ]);
  const holder = nodes.find((node) => bodies(node).some((body) => hasWeights(body, outer)));
  if (holder !== undefined)
    return (
      `holds its weights inside node "${holder.name}" (${holder.opType}), which runs as the data decide: ` +
      'export the model without control flow, for the case to be trained.'
    );
  const control = nodes.find(({ opType }) => ['If', 'Loop', 'Scan'].includes(opType));
  if (control !== undefined)
    return (
      `reaches its weights only through node "${control.name}" (${control.opType}), which runs as the data decide: ` +
      'give sizes that are open with --input-shape, or export the model without control flow.'
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

function isWeight({ dataType, dims }: TensorProto): boolean {
  return floats.has(dataType) && dims.some((size) => size > 1n);
}

function holdsWeight({ attribute }: NodeProto): boolean {
  return attribute.some(({ t }) => t !== undefined && isWeight(t));
}

/** True if a graph, or one inside it, has float tensors of more than one element, or reads such of the outer graph. */
function hasWeights({ initializer, node }: GraphProto, outer: ReadonlySet<string>): boolean {
  return (
    initializer.some(isWeight) ||
    node.some(
      (one) =>
        holdsWeight(one) ||
        one.input.some((name) => outer.has(name)) ||
        bodies(one).some((body) => hasWeights(body, outer)),
    )
  );
}
