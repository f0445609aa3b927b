// How often something can happen that waits for itself: the largest ratio of milliseconds to tokens over the cycles of
// a graph. An edge says that an event of index k is no earlier than another of index k − tokens, plus milliseconds;
// where every event is the maximum of such terms, that ratio is the period in which all of it comes again (Baccelli et
// al., "Synchronization and Linearity", §3.2). Howard's policy iteration, for several components (Cochet-Terrasson et
// al. 1998). Exact for milliseconds on the grid of times.ts: one division, of a cycle's sum by its tokens. Pure.

import { assert } from '../assert.ts';

/** What waits for what. Tokens of an edge may be negative; those of a cycle add up to 1 or more. */
export class WaitGraph {
  readonly nodeCount: number;
  readonly from: number[] = [];
  readonly to: number[] = [];
  readonly milliseconds: number[] = [];
  readonly tokens: number[] = [];

  constructor(nodeCount: number) {
    this.nodeCount = nodeCount;
  }

  /** Event k of `to` is no earlier than event k − `tokens` of `from`, plus `ms`. */
  add(from: number, to: number, ms: number, tokens: number): void {
    this.from.push(from);
    this.to.push(to);
    this.milliseconds.push(ms);
    this.tokens.push(tokens);
  }
}

/** The cycle that sets the period. */
export interface Critical {
  readonly periodMs: number;
  /** Its nodes in order. */
  readonly nodes: readonly number[];
}

/** Far more than it takes: a policy is improved a few times. */
const iterationLimit = 10_000;

/** The critical cycle. Every node that waits must be waited for. An Error for a cycle without tokens. */
export function criticalCycle(graph: WaitGraph): Critical {
  const policy = new Policy(graph);
  for (let iteration = 0; iteration < iterationLimit; iteration++) {
    policy.evaluate();
    if (!policy.improve()) return policy.critical();
  }
  throw new Error(`no period was found in ${iterationLimit} iterations`);
}

/** One edge out of each node, and what following these edges comes to. */
class Policy {
  readonly #graph: WaitGraph;
  /** Edges out of node n are edges[first[n]] up to edges[first[n + 1]]. */
  readonly #first: Int32Array;
  readonly #edges: Int32Array;
  /** By node; −1: it takes part in nothing. */
  readonly #chosen: Int32Array;
  /** By node: the ratio of the cycle that the policy leads to, and how much later it is than that alone says. */
  readonly #ratio: Float64Array;
  readonly #lead: Float64Array;
  readonly #seen: Int32Array;
  readonly #slack: number;
  #best: Critical = { periodMs: 0, nodes: [] };

  constructor(graph: WaitGraph) {
    const { nodeCount, from, to, milliseconds } = graph;
    this.#graph = graph;
    this.#first = new Int32Array(nodeCount + 1);
    for (const node of from) this.#first[node + 1] = (this.#first[node + 1] as number) + 1;
    for (let node = 0; node < nodeCount; node++)
      this.#first[node + 1] = (this.#first[node + 1] as number) + (this.#first[node] as number);
    const next = this.#first.slice(0, nodeCount);
    this.#edges = new Int32Array(from.length);
    for (const [edge, node] of from.entries()) {
      this.#edges[next[node] as number] = edge;
      next[node] = (next[node] as number) + 1;
    }
    this.#ratio = new Float64Array(nodeCount);
    this.#lead = new Float64Array(nodeCount);
    this.#seen = new Int32Array(nodeCount);
    this.#chosen = new Int32Array(nodeCount).fill(-1);
    let total = 0;
    for (const [edge, ms] of milliseconds.entries()) {
      total += ms;
      assert(this.#isSource(to[edge] as number), `nothing waits for node ${to[edge]}`);
      const node = from[edge] as number;
      const known = this.#chosen[node] as number;
      if (known === -1 || ms > (milliseconds[known] as number)) this.#chosen[node] = edge;
    }
    this.#slack = 1e-9 + 1e-13 * total;
  }

  #isSource(node: number): boolean {
    return (this.#first[node + 1] as number) > (this.#first[node] as number);
  }

  /** Follows the policy from every node. */
  evaluate(): void {
    const { nodeCount, to } = this.#graph;
    this.#best = { periodMs: 0, nodes: [] };
    this.#seen.fill(0);
    const path: number[] = [];
    for (let start = 0; start < nodeCount; start++) {
      if (this.#seen[start] !== 0 || this.#chosen[start] === -1) continue;
      let node = start;
      while (this.#seen[node] === 0) {
        this.#seen[node] = 1;
        path.push(node);
        node = to[this.#chosen[node] as number] as number;
      }
      // Seen on this very path: a cycle that nobody has priced.
      const isNew = this.#seen[node] === 1;
      if (isNew) this.#price(path.slice(path.indexOf(node)));
      while (path.length > 0) {
        const last = path.pop() as number;
        if (!isNew || last !== node) this.#follow(last);
        this.#seen[last] = 2;
      }
    }
  }

  /** The ratio of a cycle of the policy; its first node keeps its lead. */
  #price(cycle: readonly number[]): void {
    const { milliseconds, tokens } = this.#graph;
    let [ms, count] = [0, 0];
    for (const node of cycle) {
      ms += milliseconds[this.#chosen[node] as number] as number;
      count += tokens[this.#chosen[node] as number] as number;
    }
    assert(count > 0, 'a cycle of waits has no tokens');
    const periodMs = ms / count;
    this.#ratio[cycle[0] as number] = periodMs;
    if (periodMs > this.#best.periodMs) this.#best = { periodMs, nodes: cycle };
  }

  #follow(node: number): void {
    const { to, milliseconds, tokens } = this.#graph;
    const edge = this.#chosen[node] as number;
    const next = to[edge] as number;
    const ratio = this.#ratio[next] as number;
    this.#ratio[node] = ratio;
    this.#lead[node] = (milliseconds[edge] as number) - ratio * (tokens[edge] as number) + (this.#lead[next] as number);
  }

  /** Takes edges to higher ratios; where there are none, those with more lead. False if there is nothing to better. */
  improve(): boolean {
    return (
      this.#improveBy((node, next) => (this.#ratio[next] as number) - (this.#ratio[node] as number)) ||
      this.#improveBy((node, next, edge) => {
        const ratio = this.#ratio[node] as number;
        if ((this.#ratio[next] as number) < ratio - this.#slack) return 0;
        const { milliseconds, tokens } = this.#graph;
        const lead = (milliseconds[edge] as number) - ratio * (tokens[edge] as number) + (this.#lead[next] as number);
        return lead - (this.#lead[node] as number);
      })
    );
  }

  #improveBy(gainOf: (node: number, next: number, edge: number) => number): boolean {
    const { nodeCount, to } = this.#graph;
    let isBetter = false;
    for (let node = 0; node < nodeCount; node++) {
      let most = this.#slack;
      for (let at = this.#first[node] as number; at < (this.#first[node + 1] as number); at++) {
        const edge = this.#edges[at] as number;
        const next = to[edge] as number;
        const gain = gainOf(node, next, edge);
        if (gain <= most) continue;
        most = gain;
        this.#chosen[node] = edge;
        isBetter = true;
      }
    }
    return isBetter;
  }

  critical(): Critical {
    return this.#best;
  }
}
