// Readable names of layers: from the parameters' names if those are readable, otherwise from the node's path, otherwise
// numbered.

import type { Node } from './graph.ts';
import { freshName, producers } from './liveness.ts';

/** Suffixes that exporters append to a module's name for its tensors. */
const tensorSuffix = /[._/:](weight|bias|kernel|gamma|beta|scale|embedding|embeddings|table|alpha|slope|w|b)(_?\d+)?$/i;
/** Generated names: numbers, "onnx::Conv_12", "val_3". */
const madeUp =
  /^(\d+|onnx::.*|val_?\d+|_val.*|tensor_?\d+|param_?\d+|initializer_?\d+|[A-Za-z]*constant[A-Za-z]*_?\d*)$/i;

/** Operators that may rearrange weights before they are read. */
const rearranging: ReadonlySet<string> = new Set(['Transpose', 'Reshape', 'Unsqueeze', 'Squeeze', 'Cast', 'Identity']);

/** Names layers one after another; names are unique. */
export class LayerNamer {
  readonly #taken = new Set<string>();
  readonly #counts = new Map<string, number>();

  /** The name of a layer. `heavy` is its main node. */
  name(heavy: Node, nodes: readonly Node[], isParameter: (name: string) => boolean): string {
    const kind = heavy.operator.toLowerCase();
    const count = (this.#counts.get(kind) ?? 0) + 1;
    this.#counts.set(kind, count);
    const own = parametersBehind(heavy, nodes, isParameter);
    const all = nodes.flatMap((node) => node.inputs.filter(isParameter));
    const stem = firstReadable(own) ?? pathName(heavy) ?? firstReadable(all) ?? `${kind}_${count}`;
    return freshName(stem, this.#taken);
  }
}

/** The parameters that a node reads, directly or through nodes that only rearrange them. */
function parametersBehind(
  heavy: Node,
  nodes: readonly Node[],
  isParameter: (name: string) => boolean,
): readonly string[] {
  const sources = producers(nodes);
  const behind = (name: string): string => {
    const source = sources.get(name);
    return source !== undefined && rearranging.has(source.operator) ? behind(source.inputs[0] ?? '') : name;
  };
  return heavy.inputs.map(behind).filter(isParameter);
}

function firstReadable(parameters: readonly string[]): string | undefined {
  for (const parameter of parameters) {
    const stem = parameter.replace(/^\/+/, '').replace(tensorSuffix, '');
    if (stem !== '' && !madeUp.test(parameter) && !madeUp.test(stem)) return stem.replaceAll('/', '.');
  }
  return undefined;
}

/**
 * The name from a node's path: "/layer1/layer1.0/conv1/Conv" gives "layer1.0.conv1". The last part is the operator, and
 * a part that begins with the one before replaces it.
 */
function pathName(node: Node): string | undefined {
  const parts = node.name.split('/').filter((part) => part !== '');
  if (!node.name.includes('/') || parts.length < 2) return undefined;
  const path: string[] = [];
  for (const part of parts.slice(0, -1)) {
    const before = path.at(-1);
    if (before !== undefined && part.startsWith(`${before}.`)) path.pop();
    path.push(part);
  }
  return path.join('.');
}
