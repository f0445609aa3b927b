// Which values of a forward pass to keep for the backward pass, and which to compute again. Keeping costs bytes,
// computing again costs time; the best choice for any exchange rate between the two is a minimum cut of the forward
// pass (the min-cut rematerialization of AOTAutograd, with time in the objective). Sweeping the rate gives the lower
// convex hull of all choices. Pure: it knows nodes by their names and costs only.

import { FlowNetwork } from './minimum-cut.ts';

/** A node of the forward pass. */
export interface RecomputableNode {
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  /** What computing it once more takes, in milliseconds; Infinity where that is not allowed. */
  readonly costMs: number;
}

/** What there is to choose. A value without an entry in `bytes` is at hand for nothing (a parameter, a constant). */
export interface RecomputationProblem {
  /** In an order in which they can run. */
  readonly nodes: readonly RecomputableNode[];
  /** What keeping a value takes; Infinity where it must not be kept but computed (a view of another value). */
  readonly bytes: ReadonlyMap<string, number>;
  /** The values that the backward pass reads. */
  readonly required: Iterable<string>;
}

/** One choice. */
export interface Recomputation {
  /** Bytes of the values kept. */
  readonly savedBytes: number;
  /** Time of the nodes that run again. */
  readonly extraMs: number;
  /** The values kept. */
  readonly saved: ReadonlySet<string>;
  /** The values computed again: all outputs of the nodes that run again. */
  readonly recompute: ReadonlySet<string>;
}

/**
 * The choice with the least savedBytes + bytesPerMs · extraMs; of several, the one that computes least again. With r(n)
 * = 1 where node n runs again and a(v) = 1 where the backward pass or a node that runs again reads v, the cost is Σ
 * ms(n)·r(n) + Σ bytes(v)·max(0, a(v) − r(producer of v)): a cut between the ones and the zeros.
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

/** What running these nodes again saves and costs. */
export function measured(problem: RecomputationProblem, again: readonly RecomputableNode[]): Recomputation {
  const recompute = new Set(again.flatMap(({ outputs }) => outputs));
  const read = [...problem.required, ...again.flatMap(({ inputs }) => inputs)];
  const saved = new Set(read.filter((value) => problem.bytes.has(value) && !recompute.has(value)));
  let savedBytes = 0;
  for (const value of saved) savedBytes += problem.bytes.get(value) as number;
  return { savedBytes, extraMs: again.reduce((sum, { costMs }) => sum + costMs, 0), saved, recompute };
}

/** At most so many cuts make a front. */
const cutLimit = 64;
/**
 * Equal layers would all change sides at one rate; costs that differ by this much in all let them change one after the
 * other.
 */
const tieBreak = 1e-3;

/**
 * The choices that are best at some exchange rate, from "compute nothing again" to "keep the least": bytes fall and
 * time grows along the list. Of layers that cost the same, early ones are computed again first: when their turn comes,
 * most of what was kept is free already.
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
  /** Pairs of neighbours between which there may be more corners of the hull; the widest are looked at first. */
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

/** Without points that another one beats in both. */
function paretoFront(points: readonly Recomputation[]): readonly Recomputation[] {
  const front: Recomputation[] = [];
  for (const point of [...points].sort((a, b) => a.extraMs - b.extraMs || a.savedBytes - b.savedBytes)) {
    if (point.savedBytes < (front.at(-1)?.savedBytes ?? Number.POSITIVE_INFINITY)) front.push(point);
  }
  return front;
}

/** The point of a front that fits with the least time; undefined where none does. */
export function withinBudget(front: readonly Recomputation[], budgetBytes: number): Recomputation | undefined {
  return front.find(({ savedBytes }) => savedBytes <= budgetBytes);
}
