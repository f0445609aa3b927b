// How a run follows devices that slow down, and goes on without those that are lost: by name, as plain data. The
// mechanism is the same for all (layouts, copies, checkpoints); a policy says what is decided, and when.

export const recoveryNames = ['asteroid', 'ftpipehd', 'respipe'] as const;

export type RecoveryName = (typeof recoveryNames)[number];

export interface RecoveryPolicy {
  /**
   * What comes in the place of a layout that lost devices. 'light': stages keep their devices, cuts move by measured
   * times; 'capacities': the model is partitioned again by capacities; 'take-over': a neighbour has the lost layers,
   * too.
   */
  readonly replan: 'light' | 'capacities' | 'take-over';
  /**
   * The model is partitioned again by capacities after so many rounds, and then every so many. Absent: drift is
   * watched, and plans are kept ready for losses, unless `replan` is another.
   */
  readonly repartition?: { readonly first: number; readonly every: number };
  /**
   * Devices are asked whether they live when no batch has come for `leastMs`, or for so many times what one usually
   * takes. Absent: they are judged by their own silence alone.
   */
  readonly timer?: { readonly leastMs: number; readonly batches: number };
  /** Rounds between copies to the next worker, at multiples. Absent: as often as costs little. */
  readonly copyEvery?: number;
  /** Rounds between copies of everything to the coordinator, which are checkpoints. Absent: as the settings say. */
  readonly checkpointEvery?: number;
  /** Where the last stage's copies go. Absent: to the stage before it. */
  readonly lastCopyTo?: 'first';
}

export const recoveryPolicies: Readonly<Record<RecoveryName, RecoveryPolicy>> = {
  /** The default. */
  asteroid: { replan: 'light' },
  /** FTPipeHD, §III-D to III-F, with the periods of §III-D and §IV-B. */
  ftpipehd: {
    replan: 'capacities',
    repartition: { first: 10, every: 100 },
    timer: { leastMs: 2_000, batches: 8 }, // the paper does not say how long
    copyEvery: 50,
    checkpointEvery: 100,
    lastCopyTo: 'first',
  },
  /** Its baseline (§IV-E): a chain of copies, and nothing is balanced again. */
  respipe: { replan: 'take-over', copyEvery: 50 },
};

/** Whether the model is to be partitioned again now that `rounds` rounds of the run have committed. */
export function isRepartitionDue({ repartition }: RecoveryPolicy, rounds: number): boolean {
  if (repartition === undefined) return false;
  const { first, every } = repartition;
  return rounds >= first && (rounds - first) % every === 0;
}
