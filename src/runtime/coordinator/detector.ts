// Whether devices live, from what is heard of them (Asteroid §3.4, heartbeat-guided failure detection). Time is a
// parameter; only monotonic time counts. How long a silence may last follows from how regular a device was before,
// within limits; a device that computes something that keeps its thread (reading a model, designing a stage) is given
// longer. Links follow the same rule (Link.expectSilence).

/** Limits of what is learnt: silence after which a device is asked whether it lives, and after which it is given up. */
export const suspectLimitsMs = { least: 1_500, most: 10_000 } as const;

/** Standard deviations beyond the mean interval that are nothing unusual. */
const tolerance = 8;

/** Weight of the newest interval in mean and variance. */
const newest = 1 / 16;

export interface Silence {
  readonly device: string;
  readonly silentMs: number;
  /** What was learnt for this device. */
  readonly suspectAfterMs: number;
  readonly deadAfterMs: number;
  readonly verdict: 'suspect' | 'dead';
}

interface Life {
  heardMs: number;
  meanMs: number;
  varianceMs2: number;
  isSuspected: boolean;
}

/** The lives of some devices. */
export class Detector {
  readonly #lives = new Map<string, Life>();
  readonly #tickMs: number;
  #judgedMs: number | undefined;

  /** `tickMs`: how often `judge` is going to be called. */
  constructor(tickMs: number) {
    this.#tickMs = tickMs;
  }

  /** A sign of life: any frame, and at least the heartbeats. */
  heard(device: string, nowMs: number): void {
    const life = this.#lives.get(device);
    if (life === undefined) {
      this.#lives.set(device, { heardMs: nowMs, meanMs: 0, varianceMs2: 0, isSuspected: false });
      return;
    }
    const intervalMs = nowMs - life.heardMs;
    const offMs = intervalMs - life.meanMs;
    life.meanMs += newest * offMs;
    life.varianceMs2 = (1 - newest) * (life.varianceMs2 + newest * offMs * offMs);
    life.heardMs = nowMs;
    life.isSuspected = false;
  }

  /** Whether a sign of life has come at this time or later. */
  heardSince(device: string, ms: number): boolean {
    return (this.#lives.get(device)?.heardMs ?? Number.NEGATIVE_INFINITY) >= ms;
  }

  forget(device: string): void {
    this.#lives.delete(device);
  }

  /** Silence that this device may keep; `patienceMs`: at least so long before it is given up. */
  limits(device: string, patienceMs = 0): { readonly suspectAfterMs: number; readonly deadAfterMs: number } {
    const { meanMs = 0, varianceMs2 = 0 } = this.#lives.get(device) ?? {};
    const learntMs = meanMs + tolerance * Math.sqrt(varianceMs2);
    const suspectAfterMs = Math.min(suspectLimitsMs.most, Math.max(suspectLimitsMs.least, learntMs));
    return { suspectAfterMs, deadAfterMs: Math.max(patienceMs, 2 * suspectAfterMs) };
  }

  /**
   * Devices that have been silent for too long: each is suspected once, then dead. After a pause of this very process
   * (it was stopped, the machine slept) nobody is judged by what could not be heard. `patienceMs`: how long a device
   * may be silent at least, by what it owes.
   */
  judge(nowMs: number, patienceMs: (device: string) => number): readonly Silence[] {
    const pausedMs = this.#judgedMs === undefined ? 0 : nowMs - this.#judgedMs - this.#tickMs;
    this.#judgedMs = nowMs;
    if (pausedMs > this.#tickMs) {
      for (const life of this.#lives.values()) life.heardMs = Math.min(nowMs, life.heardMs + pausedMs);
    }
    const found: Silence[] = [];
    for (const [device, life] of this.#lives) {
      const silentMs = nowMs - life.heardMs;
      const limits = this.limits(device, patienceMs(device));
      if (silentMs >= limits.deadAfterMs) found.push({ device, silentMs, ...limits, verdict: 'dead' });
      else if (silentMs >= limits.suspectAfterMs && !life.isSuspected) {
        life.isSuspected = true;
        found.push({ device, silentMs, ...limits, verdict: 'suspect' });
      }
    }
    return found;
  }
}
