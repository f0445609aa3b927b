// What to do if one device is lost, found before any is, in idle time (Asteroid §3.4): one plan for each device of the layout that stands.

import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';

/** The plans for every single loss, or why there is none, as long as what they follow from holds. */
export class Reserve {
  #from: Plan | undefined;
  #devices: readonly string[] = [];
  readonly #answers = new Map<string, Plan | InputError>();
  #untold: Plan[] = [];

  /** What is known of devices and links has changed. */
  clear(): void {
    this.#from = undefined;
    this.#answers.clear();
    this.#untold = [];
  }

  /** Finds the plan for one more device, where `find` throws InputError for none; false: all are known. */
  add(from: Plan, devices: readonly string[], find: (lost: string, others: readonly string[]) => Plan): boolean {
    if (this.#from !== from || !areSame(this.#devices, devices)) this.clear();
    [this.#from, this.#devices] = [from, devices];
    const lost = devices.find((device) => !this.#answers.has(device));
    if (lost === undefined) return false;
    const others = devices.filter((device) => device !== lost);
    try {
      const plan = find(lost, others);
      this.#answers.set(lost, plan);
      this.#untold.push(plan);
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.#answers.set(lost, error);
    }
    return true;
  }

  /** A plan that was not told before: those who would run it can make themselves ready. */
  tell(): Plan | undefined {
    return this.#untold.shift();
  }

  /** The plan for this loss; undefined where none is in reserve. Throws the InputError where there is none. */
  take(from: Plan, { lost, devices }: { readonly lost: readonly string[]; readonly devices: readonly string[] }): Plan | undefined {
    const [only] = lost;
    const isFor =
      this.#from === from &&
      lost.length === 1 &&
      areSame(
        devices,
        this.#devices.filter((device) => device !== only),
      );
    const answer = isFor && only !== undefined ? this.#answers.get(only) : undefined;
    if (answer instanceof InputError) throw answer;
    return answer;
  }
}

function areSame(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((device, index) => device === b[index]);
}
