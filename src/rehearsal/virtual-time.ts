// Virtual time: planned events happen one after the other, each only when everything that the one before caused is at
// rest. An hour of waiting takes no time, and events of the same moment keep the order in which they were planned, so
// that a run is the same each time.

/** A planned event. */
interface Planned {
  readonly atMs: number;
  readonly order: number;
  readonly action: () => void;
  isCancelled: boolean;
}

/** The world's time. */
export class VirtualTime {
  #nowMs = 0;
  #order = 0;
  /** A binary heap: each before both of its children. */
  readonly #heap: Planned[] = [];

  /** Milliseconds since the world began. */
  get nowMs(): number {
    return this.#nowMs;
  }

  /** Plans an action, no earlier than now. The returned function cancels it. */
  at(atMs: number, action: () => void): () => void {
    const planned: Planned = { atMs: Math.max(atMs, this.#nowMs), order: this.#order++, action, isCancelled: false };
    this.#push(planned);
    return () => {
      planned.isCancelled = true;
    };
  }

  /** Advances to the next planned action and runs it. False if there is none. */
  runNext(): boolean {
    for (let next = this.#pop(); next !== undefined; next = this.#pop()) {
      if (next.isCancelled) continue;
      this.#nowMs = next.atMs;
      next.action();
      return true;
    }
    return false;
  }

  #push(planned: Planned): void {
    const heap = this.#heap;
    let index = heap.length;
    heap.push(planned);
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (isBefore(heap[parent] as Planned, planned)) break;
      heap[index] = heap[parent] as Planned;
      index = parent;
    }
    heap[index] = planned;
  }

  #pop(): Planned | undefined {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    if (first === undefined || last === undefined || heap.length === 0) return first;
    let index = 0;
    for (;;) {
      let child = 2 * index + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isBefore(heap[child + 1] as Planned, heap[child] as Planned)) child++;
      if (isBefore(last, heap[child] as Planned)) break;
      heap[index] = heap[child] as Planned;
      index = child;
    }
    heap[index] = last;
    return first;
  }
}

function isBefore(a: Planned, b: Planned): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
}

/**
 * Turns of the event loop requested at once: between two of them Node.js runs what is due, without polling the system
 * each time.
 */
const turnsAtOnce = 64;
let turnCount = 0;
const resting: (() => void)[] = [];

/**
 * Resolves when everything that the last event caused is at rest, and unhandled rejections have been reported.
 */
export function atRest(): Promise<void> {
  if (turnCount === 0) for (; turnCount < turnsAtOnce; turnCount++) setImmediate(turn);
  return new Promise((resolve) => resting.push(resolve));
}

function turn(): void {
  turnCount--;
  for (const resolve of resting.splice(0)) resolve();
}
