// What plans count on of devices' memory, in this run. A device whose process the system killed for want of memory is
// counted on for less when it comes back, so that it does not happen a second time. What devices say of themselves is
// all that is known: how much memory they have, and how often their control group has lost a process to its limit.

import type { Plan } from '../../cluster/cluster.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';

/**
 * A device comes back to this part of what it could not hold. Besides what a plan predicts there is what the process takes
 * for itself, and whatever else runs in its group, and nobody knows how much that is: less caution would often cost
 * another kill, and each costs all devices a recovery.
 */
const loweredTo = 0.5;

/** A budget that was lowered. */
export interface LoweredBudget {
  /** What it was: what the device has, or what was predicted for it when it was killed, whichever is less. */
  readonly fromMiB: number;
  /** 0: it was killed before it had any work, and is given none. */
  readonly toMiB: number;
  /** Kills in its control group that it had not reported before. */
  readonly killCount: number;
}

interface Known {
  readonly facts: DeviceFacts;
  /** Undefined: all that it has. */
  readonly budgetMiB: number | undefined;
  /** It vanished without a word, with so much to hold. */
  readonly heldMiB: number | undefined;
}

/** The budgets of a run's devices, by name. */
export class MemoryBudgets {
  readonly #devices = new Map<string, Known>();

  /**
   * A device has joined. Returns how its budget was lowered, if it was. One that has got more memory since begins anew.
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
   * A device has vanished without a word. `heldMiB`: what it was to hold; by default, where nobody knows, all of its
   * budget. 0: it had no work yet.
   */
  vanished(device: string, heldMiB: number = Number.POSITIVE_INFINITY): void {
    const known = this.#devices.get(device);
    if (known !== undefined) this.#devices.set(device, { ...known, heldMiB });
  }

  /** What plans may count on, of `memoryMiB`. */
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

/** What a device was to hold in these layouts; undefined where it has no part in them, or nothing was predicted. */
export function predictedMiB(device: string, plans: readonly (Plan | undefined)[]): number | undefined {
  const found = plans.flatMap((plan) => plan?.predicted.peakMemoryMiB[device] ?? []);
  return found.length === 0 ? undefined : Math.max(...found);
}
