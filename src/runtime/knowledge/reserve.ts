// What to do if one device is lost, found before any is, in idle time (Asteroid §3.4): one plan for each device of the
// layout that stands.

import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';

/** The plans for every single loss, or why there is none, as long as what they follow from holds. */
export class Reserve {
  #from: Plan | undefined;
  #devices: readonly string[] = [];
  readonly #answers = new Map<string, Plan | InputError>();
  /** Plans that devices know of, by the device that is lost. */
  readonly #announced = new Map<string, Plan>();
  #unannounced: string[] = [];

  /** There are other devices, or their facts have changed. */
  clear(): void {
    this.#from = undefined;
    this.#announced.clear();
    this.outdate();
  }

  /** More is known of how fast devices and links are: each plan is looked for again. */
  outdate(): void {
    this.#answers.clear();
    this.#unannounced = [];
  }

  /**
   * Finds the plan for one more device, where `find` throws InputError for none; false: all are known. `announced`: one
   * for this loss that devices know of from before `outdate`.
   */
  add(
    from: Plan,
    devices: readonly string[],
    find: (lost: string, others: readonly string[], announced: Plan | undefined) => Plan,
  ): boolean {
    if (this.#from !== from || !areSame(this.#devices, devices)) this.clear();
    [this.#from, this.#devices] = [from, devices];
    const lost = mostWorkFirst(from, devices).find((device) => !this.#answers.has(device));
    if (lost === undefined) return false;
    const others = devices.filter((device) => device !== lost);
    const announced = this.#announced.get(lost);
    try {
      const plan = find(lost, others, announced);
      this.#answers.set(lost, plan);
      if (plan !== from && (announced === undefined || !isSameLayout(announced, plan))) this.#unannounced.push(lost);
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.#answers.set(lost, error);
    }
    return true;
  }

  /** A plan that was not announced before: the devices that would run it can prepare for it. */
  announce(): Plan | undefined {
    const lost = this.#unannounced.shift();
    const plan = lost === undefined ? undefined : this.#answers.get(lost);
    if (lost === undefined || plan === undefined || plan instanceof InputError) return undefined;
    this.#announced.set(lost, plan);
    return plan;
  }

  /** Whether there is an answer for every loss, and devices know them. */
  get isAnnounced(): boolean {
    return this.#devices.length > 0 && this.#answers.size === this.#devices.length && this.#unannounced.length === 0;
  }

  /** The plan for this loss; undefined where none is in reserve. Throws the InputError where there is none. */
  take(
    from: Plan,
    { lost, devices }: { readonly lost: readonly string[]; readonly devices: readonly string[] },
  ): Plan | undefined {
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

/** The loss of a device with many layers leaves the others the most to translate. */
function mostWorkFirst({ stages }: Plan, devices: readonly string[]): readonly string[] {
  const layerCount = (device: string): number => {
    const stage = stages.find((one) => one.devices.includes(device));
    return stage === undefined ? 0 : stage.layers[1] - stage.layers[0];
  };
  return devices.toSorted((a, b) => layerCount(b) - layerCount(a));
}

/** Whether devices would run the same stages. */
function isSameLayout(a: Plan, b: Plan): boolean {
  const layoutOf = ({ planner: _, predicted: __, ...layout }: Plan): string => JSON.stringify(layout);
  return layoutOf(a) === layoutOf(b);
}

function areSame(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((device, index) => device === b[index]);
}
