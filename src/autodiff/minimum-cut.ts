// Minimum cuts by Dinic's algorithm (shortest augmenting paths by levels; O(V²E), near linear on recomputation's
// networks). Capacities are non-negative numbers, Infinity allowed. Not recursive, so that long chains do not exhaust
// the stack.

import { assert } from '../assert.ts';

/** A directed network with capacities. Vertices are numbered from 0 in the order of `vertex()`. */
export class FlowNetwork {
  /** By edge: its head. Edge e and its reverse e ^ 1 are neighbours. */
  readonly #heads: number[] = [];
  readonly #capacities: number[] = [];
  readonly #edges: number[][] = [];

  /** Adds a vertex. */
  vertex(): number {
    return this.#edges.push([]) - 1;
  }

  /** Adds an edge. Capacities of parallel edges add up. */
  edge(from: number, to: number, capacity: number): void {
    assert(capacity >= 0, `a capacity of ${capacity}`);
    this.#edges[from]?.push(this.#heads.push(to) - 1);
    this.#capacities.push(capacity);
    this.#edges[to]?.push(this.#heads.push(from) - 1);
    this.#capacities.push(0);
  }

  /**
   * The vertices on the source's side of a minimum cut; of all minimum cuts, the one with the fewest. Throws for a path
   * of infinite capacity from source to sink.
   */
  sourceSide(source: number, sink: number): ReadonlySet<number> {
    const residual = Float64Array.from(this.#capacities);
    const finite = this.#capacities.filter(Number.isFinite);
    // Rounding leaves residual capacities, which count as 0.
    const tolerance = finite.reduce((sum, capacity) => sum + capacity, 0) * 1e-13;
    for (;;) {
      const levels = this.#levels(residual, source, tolerance);
      if (levels[sink] === -1) return new Set([...levels.keys()].filter((vertex) => levels[vertex] !== -1));
      this.#block(residual, levels, { source, sink, tolerance });
    }
  }

  /** The distance of every vertex from the source over edges with residual capacity; −1 if there is no path. */
  #levels(residual: Float64Array, source: number, tolerance: number): Int32Array {
    const levels = new Int32Array(this.#edges.length).fill(-1);
    levels[source] = 0;
    const open = [source];
    for (let place = 0; place < open.length; place++) {
      const vertex = open[place] as number;
      for (const edge of this.#edges[vertex] as number[]) {
        const head = this.#heads[edge] as number;
        if (levels[head] !== -1 || (residual[edge] as number) <= tolerance) continue;
        levels[head] = (levels[vertex] as number) + 1;
        open.push(head);
      }
    }
    return levels;
  }

  /** Sends flow along paths whose edges each go up one level, until none is left. */
  #block(
    residual: Float64Array,
    levels: Int32Array,
    { source, sink, tolerance }: { readonly source: number; readonly sink: number; readonly tolerance: number },
  ): void {
    const next = new Int32Array(this.#edges.length);
    const path: number[] = [];
    for (let vertex = source; ; ) {
      if (vertex === sink) {
        const flow = path.reduce((least, edge) => Math.min(least, residual[edge] as number), Number.POSITIVE_INFINITY);
        assert(flow < Number.POSITIVE_INFINITY, 'no cut is finite');
        for (const edge of path) {
          residual[edge] = (residual[edge] as number) - flow;
          residual[edge ^ 1] = (residual[edge ^ 1] as number) + flow;
        }
        path.length = path.findIndex((edge) => (residual[edge] as number) <= tolerance);
      } else {
        const edges = this.#edges[vertex] as number[];
        const edge = edges[next[vertex] as number];
        if (edge === undefined) {
          if (vertex === source) return;
          path.pop();
          levels[vertex] = -2; // a dead end, for the rest of this phase
        } else if (
          (residual[edge] as number) > tolerance &&
          levels[this.#heads[edge] as number] === (levels[vertex] as number) + 1
        ) {
          path.push(edge);
        } else next[vertex] = (next[vertex] as number) + 1;
      }
      const last = path.at(-1);
      vertex = last === undefined ? source : (this.#heads[last] as number);
    }
  }
}
