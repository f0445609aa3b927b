// Which values of a forward pass to keep for the backward pass, and which to recompute. Keeping costs bytes,
// recomputing costs time; the best choice for any exchange rate between the two is a minimum cut of the forward pass
// (the min-cut rematerialization of AOTAutograd, with time in the objective). Varying the rate gives the lower convex
// hull of all choices. Pure: uses only the names and costs of nodes.

import { FlowNetwork } from './minimum-cut.ts';

/** A node of the forward pass. */
export interface RecomputableNode {
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  /** Milliseconds to run it once more; Infinity if that is not allowed. */
  readonly costMs: number;
}

/** The input of the choice. A value without an entry in `bytes` is available for free (a parameter, a constant). */
export interface RecomputationProblem {
  /** In topological order. */
  readonly nodes: readonly RecomputableNode[];
  /** Bytes to keep a value; Infinity if it must not be kept (a view of another value). */
  readonly bytes: ReadonlyMap<string, number>;
  /** The values that the backward pass reads. */
  readonly required: Iterable<string>;
}

/** A choice of kept and recomputed values. */
export interface Recomputation {
  /** Bytes of the kept values. */
  readonly savedBytes: number;
  /** Milliseconds of the nodes that run again. */
  readonly extraMs: number;
  /** The values kept. */
  readonly saved: ReadonlySet<string>;
  /** The recomputed values: all outputs of the nodes that run again. */
  readonly recompute: ReadonlySet<string>;
}

/**
 * The choice with the least savedBytes + bytesPerMs · extraMs; of several, the one that recomputes least. With r(n) = 1
 * if node n runs again and a(v) = 1 if the backward pass or a node that runs again reads v, the cost is Σ ms(n)·r(n) +
 * Σ bytes(v)·max(0, a(v) − r(producer of v)): a cut between the ones and the zeros.
 */
export function cheapestRecomputation(problem: RecomputationProblem, bytesPerMs: number): Recomputation {
  const network = new FlowNetwork();
  const [source, sink] = [network.vertex(), network.vertex()];
  const nodes = problem.nodes.map(() => network.vertex());
  const producers = new Map(
    problem.nodes.flatMap(({ outputs }, index) => outputs.map((output) => [output, nodes[index] as number])),
  );
  const read = new Map<string, number>();
  for (const [value, bytes] of problem.bytes) {
    const vertex = network.vertex();
    read.set(value, vertex);
    network.edge(vertex, producers.get(value) ?? sink, bytes);
  }
  for (const value of problem.required) {
    const vertex = read.get(value);
    if (vertex !== undefined) network.edge(source, vertex, Number.POSITIVE_INFINITY);
  }
  problem.nodes.forEach(({ inputs, costMs }, index) => {
    const node = nodes[index] as number;
    network.edge(node, sink, Number.isFinite(costMs) ? bytesPerMs * costMs : Number.POSITIVE_INFINITY);
    for (const input of new Set(inputs)) {
      const vertex = read.get(input);
      if (vertex !== undefined) network.edge(node, vertex, Number.POSITIVE_INFINITY);
    }
  });
  const ones = network.sourceSide(source, sink);
  const again = problem.nodes.filter((_, index) => ones.has(nodes[index] as number));
  return measured(problem, again);
}

/** The choice in which these nodes run again, with its bytes and time. */
export function measured(problem: RecomputationProblem, again: readonly RecomputableNode[]): Recomputation {
  const recompute = new Set(again.flatMap(({ outputs }) => outputs));
  const read = [...problem.required, ...again.flatMap(({ inputs }) => inputs)];
  const saved = new Set(read.filter((value) => problem.bytes.has(value) && !recompute.has(value)));
  let savedBytes = 0;
  for (const value of saved) savedBytes += problem.bytes.get(value) as number;
  return { savedBytes, extraMs: again.reduce((sum, { costMs }) => sum + costMs, 0), saved, recompute };
}

/** The maximum number of minimum cuts computed for a front. */
const cutLimit = 64;
/**
 * Equal layers would all change sides at one rate; costs that differ by this fraction in total make them change one by
 * one.
 */
const tieBreak = 1e-3;

/**
 * The choices that are best at some exchange rate, from "recompute nothing" to "keep the least": bytes fall and time
 * grows along the list. Of layers with equal cost, early ones are recomputed first: by the time of their backward pass,
 * most of what was kept is already freed.
 */
export function recomputationFront(problem: RecomputationProblem): readonly Recomputation[] {
  const { nodes } = problem;
  const factor = (index: number): number => 1 + (tieBreak * index) / nodes.length;
  const distinct = {
    ...problem,
    nodes: nodes.map((node, index) => ({ ...node, costMs: node.costMs * factor(index) })),
  };
  let cutCount = 0;
  const at = (bytesPerMs: number): Recomputation => {
    cutCount++;
    return cheapestRecomputation(distinct, bytesPerMs);
  };
  const total = [...problem.bytes.values()].reduce((sum, bytes) => sum + (Number.isFinite(bytes) ? bytes : 0), 0);
  const least = nodes.reduce((ms, { costMs }) => (costMs > 0 ? Math.min(ms, costMs) : ms), Number.POSITIVE_INFINITY);
  const ends = [at(Number.isFinite(least) ? (2 * total) / least : 0), at(0)] as const;
  const points: Recomputation[] = [...ends];
  const width = ([left, right]: readonly [Recomputation, Recomputation]): number => left.savedBytes - right.savedBytes;
  /** Neighbours between which there may be more corners of the hull; the widest pairs are examined first. */
  const gaps = [ends as readonly [Recomputation, Recomputation]];
  while (gaps.length > 0 && cutCount < cutLimit) {
    gaps.sort((a, b) => width(a) - width(b));
    const [left, right] = gaps.pop() as (typeof gaps)[number];
    if (width([left, right]) <= 0 || right.extraMs <= left.extraMs) continue;
    const between = at(width([left, right]) / (right.extraMs - left.extraMs));
    if (width([left, between]) <= 0 || width([between, right]) <= 0) continue;
    points.push(between);
    gaps.push([left, between], [between, right]);
  }
  return paretoFront(
    points.map(({ recompute }) =>
      measured(
        problem,
        nodes.filter(({ outputs }) => outputs.some((output) => recompute.has(output))),
      ),
    ),
  );
}

/** The points that no other point beats in both bytes and time. */
function paretoFront(points: readonly Recomputation[]): readonly Recomputation[] {
  const front: Recomputation[] = [];
  for (const point of [...points].sort((a, b) => a.extraMs - b.extraMs || a.savedBytes - b.savedBytes)) {
    if (point.savedBytes < (front.at(-1)?.savedBytes ?? Number.POSITIVE_INFINITY)) front.push(point);
  }
  return front;
}

/** The fastest point of a front that fits the budget; undefined if none does. */
export function withinBudget(front: readonly Recomputation[], budgetBytes: number): Recomputation | undefined {
  return front.find(({ savedBytes }) => savedBytes <= budgetBytes);
}
