// The commits that a worker waits for: of rounds that are queued, in their order.

interface AwaitedCommit {
  readonly promise: Promise<void>;
  readonly arrived: (gradientScale: number) => void;
}

export class Commits {
  /** By round, in the order in which the rounds began. */
  readonly #awaited = new Map<number, AwaitedCommit>();

  /**
   * A round is queued; resolves when it commits. `onCommit` is called at once then, with what the commit multiplies
   * gradients by.
   */
  expect(round: number, onCommit: (gradientScale: number) => void = () => {}): Promise<void> {
    let resolve = (): void => {};
    const promise = new Promise<void>((done) => {
      resolve = done;
    });
    const arrived = (gradientScale: number): void => {
      resolve();
      onCommit(gradientScale);
    };
    this.#awaited.set(round, { promise, arrived });
    return promise;
  }

  /** Resolves when `round` commits; undefined if nothing waits for that. */
  of(round: number): Promise<void> | undefined {
    return this.#awaited.get(round)?.promise;
  }

  /** A commit has arrived. False, with no effect, unless `round` is the oldest that waits for one. */
  arrived(round: number, gradientScale: number): boolean {
    const [oldest] = this.#awaited;
    if (oldest?.[0] !== round) return false;
    this.#awaited.delete(round);
    oldest[1].arrived(gradientScale);
    return true;
  }

  /** Nothing waits any more; promises that were given stay pending. */
  forget(): void {
    this.#awaited.clear();
  }
}
