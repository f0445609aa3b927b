// What PyTorch's newer exporter writes about a file's tensors: which are parameters and which are buffers, and which
// tensors of the source it computed the others from ahead of time.

import type { GraphProto, StringStringEntryProto } from './generated/onnx_pb.ts';

/** The tensors of the source that an initializer was computed from. */
export interface Origin {
  readonly parameters: readonly string[];
  /** Buffers and constants. */
  readonly others: readonly string[];
  /** Names of the results in between. */
  readonly steps: readonly string[];
  /** True if elements were only selected, repeated and put into another order. */
  readonly isRearranged: boolean;
}

/** What a file declares of its tensors. All maps are empty for files of other exporters. */
export interface Origins {
  /** By name in the source, also of what is not in the file: true for parameters, false for buffers and constants. */
  readonly kinds: ReadonlyMap<string, boolean>;
  /** By initializer: true for parameters, false for buffers and constants. */
  readonly declared: ReadonlyMap<string, boolean>;
  /** By initializer that was computed ahead. */
  readonly computed: ReadonlyMap<string, Origin>;
  /** True if the file says of every tensor computed ahead what it comes from. */
  readonly isComplete: boolean;
}

/** The metadata key of a value's kind: PARAMETER, BUFFER, CONSTANT_TENSOR. */
const kindKey = 'pkg.torch.export.graph_signature.InputSpec.kind';
/** The metadata key of a graph's parameters and buffers, as text. */
const signatureKey = 'pkg.torch.export.ExportedProgram.graph_signature';
/** The metadata key of the values that a folded constant was computed from, as a Python list. */
const foldedKey = 'pkg.onnxscript.optimizer.folded_from';

/** PyTorch's names of results that hold elements of their input; of several, each has a number. */
const rearranging: ReadonlySet<string> = new Set([
  ...['alias', 'cat', 'chunk', 'clone', 'contiguous', 'detach', 'embedding', 'expand', 'flatten', 'getitem', 'index'],
  ...['index_select', 'narrow', 'permute', 'repeat', 'reshape', 'select', 'slice', 'split', 'squeeze', 'stack', 't'],
  ...['tile', 'to', 'transpose', 'unflatten', 'unsqueeze', 'view', '_to_copy', '_unsafe_view', 'val'],
]);

/** Reads what a file declares. */
export function originsOf({ initializer, valueInfo, metadataProps }: GraphProto): Origins {
  const tensors = new Set(initializer.map(({ name }) => name));
  const kinds = signatureKinds(propertyOf(metadataProps, signatureKey) ?? '');
  const declared = new Map([...kinds].filter(([name]) => tensors.has(name)));
  const computed = new Map<string, Origin>();
  for (const { name, metadataProps: own } of valueInfo) {
    if (!tensors.has(name)) continue;
    const kind = propertyOf(own, kindKey);
    if (kind !== undefined) declared.set(name, kind === 'PARAMETER');
    const folded = propertyOf(own, foldedKey);
    if (folded !== undefined) computed.set(name, origin(name, folded, kinds));
  }
  for (const name of computed.keys()) declared.delete(name);
  return { kinds, declared, computed, isComplete: kinds.size > 0 && computed.size > 0 };
}

function propertyOf(properties: readonly StringStringEntryProto[], wanted: string): string | undefined {
  return properties.find(({ key }) => key === wanted)?.value;
}

/** The parameters (true), buffers and constants (false) in a printed ExportGraphSignature. */
function signatureKinds(text: string): ReadonlyMap<string, boolean> {
  const kinds = new Map<string, boolean>();
  for (const [, kind, target = ''] of text.matchAll(/: (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']*)'/g))
    kinds.set(target, kind === 'PARAMETER');
  return kinds;
}

function origin(name: string, folded: string, kinds: ReadonlyMap<string, boolean>): Origin {
  const sources = [...folded.matchAll(/'([^']*)'/g)].map(([, source = '']) => source);
  const steps = sources.filter((source) => !kinds.has(source));
  return {
    parameters: sources.filter((source) => kinds.get(source) === true),
    others: sources.filter((source) => kinds.get(source) === false),
    steps,
    isRearranged: [name, ...steps].every((one) => rearranging.has(operationOf(one))),
  };
}

/** PyTorch's operation in the name of its result: `expand_1` → expand. */
export function operationOf(name: string): string {
  return name.replace(/_\d+$/, '');
}
