// A failure that ends all current and later waits. Racing every wait against one long-lived promise would leave a
// reaction behind at each wait, until the promise settles; here a wait that ends well leaves nothing.

/** Fails at most once; all guarded waits then reject with its reason, and all later ones. */
export class Failure {
  readonly #waiting = new Set<(reason: unknown) => void>();
  #failure: { readonly reason: unknown } | undefined;

  /** The first reason counts. */
  fail(reason: unknown): void {
    if (this.#failure !== undefined) return;
    this.#failure = { reason };
    for (const reject of this.#waiting) reject(reason);
    this.#waiting.clear();
  }

  /** Waits for `work`, or for the failure if that comes first; the work's own failure is then ignored. */
  guard<T>(work: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      if (this.#failure === undefined) this.#waiting.add(reject);
      else reject(this.#failure.reason);
      work.then(
        (value) => {
          this.#waiting.delete(reject);
          resolve(value);
        },
        (error: unknown) => {
          this.#waiting.delete(reject);
          reject(error);
        },
      );
    });
  }

  /** Waits that have not ended. */
  get waitingCount(): number {
    return this.#waiting.size;
  }
}
