// What ONNX Runtime's CPU provider does with memory, without arena and memory pattern (as onnxruntime.ts sets it): the
// kernels that write over their input, the scratch memory of some, and the copies of the outputs. Found by counting its
// allocations (version 1.30 on x64 Linux).

import { type Graph, intAttribute, type Node, type ValueInfo } from '../graph/graph.ts';
import { inferTypes } from '../graph/infer-types.ts';
import { type MemoryModel, type MemoryUse, memoryUse, type Sharing, viewOperators } from '../graph/lifetimes.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import { byteLength, elementBytes, elementCount, type ValueType } from '../graph/tensor.ts';
import { blockedDomain } from '../lowering/layouts.ts';
import { withStatistics } from './batch-statistics.ts';
import { blockedType } from './blocked-types.ts';
import { peelReshapes } from './border-reshapes.ts';
import { arrangeForMemory, executionOrder } from './execution-order.ts';
import { hideReshapes, shownValues } from './hidden-shapes.ts';
import { canWriteInPlace } from './outputs-in-place.ts';
import { shortNames } from './short-names.ts';
import { tidy } from './tidy.ts';
import { wholeVectors } from './whole-vectors.ts';

/** A graph as it goes to the runtime. */
export interface PreparedGraph {
  readonly graph: Graph;
  /** Whether the runtime's own optimizations find something in it. */
  readonly isOptimizable: boolean;
  /** The values whose shapes the runtime knows; all, if it optimizes. */
  readonly shown: readonly ValueInfo[] | undefined;
  /** The known shapes. */
  readonly types: ReadonlyMap<string, ValueType>;
}

/**
 * Brings a graph without reshapes on its border (border-reshapes.ts) into the form that takes the runtime the least
 * memory and time.
 */
export function prepareGraph(peeled: Graph, blockSize: number | undefined): PreparedGraph {
  const typesOf = (graph: Graph): Map<string, ValueType> =>
    inferTypes(graph, (node, inputs) => blockedType(node, inputs, blockSize));
  const tidied = tidy(withStatistics(peeled));
  const graph = arrangeForMemory(wholeVectors(tidied, () => typesOf(tidied)));
  const types = typesOf(graph);
  const isOptimized = isOptimizable(graph);
  const overwrites = (node: Node): number | undefined => {
    const sharing = onnxRuntimeMemory.shares(node);
    return sharing?.how === 'in-place' ? sharing.input : undefined;
  };
  return {
    graph,
    isOptimizable: isOptimized,
    shown: isOptimized ? undefined : shownValues(graph, overwrites, types),
    types,
  };
}

/**
 * The file of a prepared graph; `signal`: with an empty sequence of that name as its first output; `leavesPlaced`:
 * weights that lie in files stay there.
 */
export function exportPrepared(
  { graph, shown }: PreparedGraph,
  { signal, leavesPlaced = false }: { readonly signal?: string | undefined; readonly leavesPlaced?: boolean } = {},
): Uint8Array {
  if (shown === undefined) return exportGraph(graph, new Map(), { emptySequence: signal, leavesPlaced });
  const { graph: short, nameOf } = shortNames(hideReshapes(graph));
  const values = shown.map((value) => ({ ...value, name: nameOf(value.name) }));
  return exportGraph(short, new Map(), { isBorderTyped: false, values, emptySequence: signal, leavesPlaced });
}

/**
 * A lowered graph has nothing left to optimize: it runs as fast without, and compiles in a third of the time
 * (EfficientNet-B1's step of 6,300 nodes: 0.46 against 1.35 s). Only transposes around an attention's products are
 * still fused with them.
 */
function isOptimizable({ nodes }: Graph): boolean {
  const isLowered = nodes.some(({ domain }) => domain === blockedDomain);
  return !isLowered || nodes.some(({ operator }) => operator === 'Softmax' || operator === 'LayerNormalization');
}

/** Kernels that write over input 0. */
const inPlace = new Set([
  'Cast',
  'Celu',
  'Clip',
  'Elu',
  'HardSigmoid',
  'LeakyRelu',
  'LogSoftmax',
  'Relu',
  'Selu',
  'Sigmoid',
  'Softmax',
  'Softplus',
  'Softsign',
  'Tanh',
  'ThresholdedRelu',
]);

/** Without arena and memory pattern, on the CPU provider. */
export const onnxRuntimeMemory: MemoryModel = {
  order: executionOrder,
  shares: ({ operator, domain }) => {
    if (domain === blockedDomain) return operator === 'Conv' ? { how: 'in-place', input: 3 } : undefined;
    if (viewOperators.has(operator)) return { how: 'view', input: 0 };
    return inPlace.has(operator) ? { how: 'in-place', input: 0 } : undefined;
  },
  reusesDead: true,
  workspaceBytes,
};

function workspaceBytes(node: Node, inputs: readonly (ValueType | undefined)[], outputs: readonly ValueType[]): number {
  const [first] = outputs;
  const bytes = first === undefined ? 0 : byteLength(first);
  switch (node.operator) {
    case 'ConvTranspose': {
      // the columns of one image: each element of the input times the weights
      const [x, w] = inputs as [ValueType, ValueType];
      return (
        elementBytes(x.type) *
        elementCount(x.shape.slice(2)) *
        elementCount(w.shape.slice(1)) *
        intAttribute(node, 'group', 1)
      );
    }
    case 'HardSwish':
    case 'ScatterElements':
      return bytes;
    case 'Mish':
      return 2 * bytes;
    case 'Where':
      return 2 * bytes;
    case 'Softmax':
    case 'LogSoftmax':
      return (intAttribute(node, 'axis', -1) + (first?.shape.length ?? 0)) % (first?.shape.length ?? 1) ===
        (first?.shape.length ?? 0) - 1
        ? 0
        : 2 * bytes;
    default:
      return 0;
  }
}

/** What one run of a compiled graph takes apart from its inputs and constants. */
export interface RunMemory extends MemoryUse {
  /**
   * The outputs twice, where the Node package copies them: all of them, before it lets go of the runtime's. 0 where
   * they are written in place.
   */
  readonly copiedBytes: number;
  /** The larger of the two peaks, of nodes and of copying. Outputs in place are there from the beginning. */
  readonly runBytes: number;
}

/** The memory of one run of a graph on this engine, as it is compiled. `blockSize` is the engine's. */
export function runMemory(graph: Graph, blockSize?: number): RunMemory {
  const { graph: prepared, shown, types } = prepareGraph(peelReshapes(graph, blockSize).graph, blockSize);
  const known = new Set(shown?.map(({ name }) => name));
  const shares = (node: Node): Sharing | undefined => {
    const sharing = onnxRuntimeMemory.shares(node);
    return shown === undefined || sharing?.how !== 'in-place' || known.has(node.outputs[0] as string)
      ? sharing
      : undefined;
  };
  const isOutputGiven = canWriteInPlace(prepared);
  const use = memoryUse(
    prepared,
    { ...onnxRuntimeMemory, shares, reusesDead: shown === undefined || known, isOutputGiven },
    types,
  );
  const copiedBytes = isOutputGiven ? 0 : 2 * use.outputBytes;
  return { ...use, copiedBytes, runBytes: Math.max(use.peakBytes, copiedBytes) };
}
