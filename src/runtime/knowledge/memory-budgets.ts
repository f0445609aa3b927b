// How much of each device's memory plans may use in this run. A device whose process the system killed for lack of
// memory gets a lower budget when it returns, so that it is not killed again. The only evidence is what devices report:
// how much memory they have, and how many processes their control group has lost to its limit.

import type { Plan } from '../../cluster/cluster.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';

/**
 * A killed device's new budget, as a part of what it could not hold. The process itself and whatever else runs in its
 * group need memory too, an unknown amount on top of what a plan predicts. With less caution the device would often be
 * killed again, and each kill costs all devices a recovery.
 */
const loweredTo = 0.5;

/** A budget that was lowered. */
export interface LoweredBudget {
  /** The budget before: what the device has, or what was predicted for it when it was killed, whichever is less. */
  readonly fromMiB: number;
  /** 0: it was killed before it had any work, and gets none. */
  readonly toMiB: number;
  /** Kills in its control group that it had not reported before. */
  readonly killCount: number;
}

interface Known {
  readonly facts: DeviceFacts;
  /** Undefined: all the memory that it has. */
  readonly budgetMiB: number | undefined;
  /** What it had to hold when it vanished without a message; undefined if it has not vanished. */
  readonly heldMiB: number | undefined;
}

/** The budgets of a run's devices, by name. */
export class MemoryBudgets {
  readonly #devices = new Map<string, Known>();

  /**
   * A device has joined. Returns how its budget was lowered, if it was. A device with more memory than before starts
   * again without a limit.
   */
  joined(device: string, facts: DeviceFacts): LoweredBudget | undefined {
    const before = this.#devices.get(device);
    const isEnlarged = before !== undefined && facts.memoryMiB > before.facts.memoryMiB;
    const lowered = before === undefined || isEnlarged ? undefined : lower(before, facts);
    const budgetMiB = lowered?.toMiB ?? (isEnlarged ? undefined : before?.budgetMiB);
    this.#devices.set(device, { facts, budgetMiB, heldMiB: undefined });
    return lowered;
  }

  /**
   * A device has vanished without a message. `heldMiB`: what it had to hold, 0 if it had no work yet; if that is
   * unknown, by default, its whole budget.
   */
  vanished(device: string, heldMiB: number = Number.POSITIVE_INFINITY): void {
    const known = this.#devices.get(device);
    if (known !== undefined) this.#devices.set(device, { ...known, heldMiB });
  }

  /** How much of `memoryMiB` plans may use. */
  withinMiB(device: string, memoryMiB: number): number {
    return Math.min(memoryMiB, this.#devices.get(device)?.budgetMiB ?? memoryMiB);
  }

  isLowered(device: string): boolean {
    return this.#devices.get(device)?.budgetMiB !== undefined;
  }
}

function lower(
  { facts, budgetMiB = facts.memoryMiB, heldMiB }: Known,
  { memoryMiB, oomKillCount }: DeviceFacts,
): LoweredBudget | undefined {
  const killCount = (oomKillCount ?? 0) - (facts.oomKillCount ?? oomKillCount ?? 0);
  if (heldMiB === undefined || killCount <= 0) return undefined;
  const hadMiB = Math.min(budgetMiB, memoryMiB);
  if (heldMiB === 0) return { fromMiB: hadMiB, toMiB: 0, killCount };
  const fromMiB = Math.min(hadMiB, heldMiB);
  return { fromMiB, toMiB: loweredTo * fromMiB, killCount };
}

/** The most that these layouts predict for a device; undefined if none of them contains it or has a prediction. */
export function predictedMiB(device: string, plans: readonly (Plan | undefined)[]): number | undefined {
  const found = plans.flatMap((plan) => plan?.predicted.peakMemoryMiB[device] ?? []);
  return found.length === 0 ? undefined : Math.max(...found);
}
