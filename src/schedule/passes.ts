// All that anyone may know of a pass and of what travels between passes: one row each. The check, the simulator, the
// drawings, recomputation and the planner read these tables; a pass without a row does not compile.
//
//   stage p − 1        stage p         stage p + 1        F forward, B backward (both of its halves at once),
//        ── activation ──▶ F ── activation ──▶             I input gradient, W weight gradient: the halves of B
//        ◀── gradient ── B, I ◀── gradient ──
//                          W

/** What travels: 'input' and 'label' from the data's holder, 'activation' forward, 'gradient' backward. */
export type Payload = 'input' | 'label' | 'activation' | 'gradient';

/** What a device computes of a micro-batch. */
export type PassKind = 'forward' | 'backward' | 'backward-input' | 'backward-weight';

/** A pass that is not made of others. */
export type ElementaryPass = Exclude<PassKind, 'backward'>;

/** Which way a pass goes through the pipeline. */
export type Direction = 'forward' | 'backward';

export interface PassRow {
  /** In drawings and texts. */
  readonly letter: string;
  /** In charts. */
  readonly colour: string;
  readonly direction: Direction;
  /** Whether it is given what comes from the stage before it in its direction, and hands on to the one after. */
  readonly exchanges: boolean;
  /** What it does of a micro-batch; each once. */
  readonly does: readonly ElementaryPass[];
  /** What must have been done of the same micro-batch on the same device. */
  readonly needs: readonly ElementaryPass[];
  /** By how many micro-batches that are kept for a backward pass there are more after it. */
  readonly keeps: 1 | 0 | -1;
  /** Whether it adds to the gradients of weights, and may come in pieces of layers. */
  readonly addsGradients: boolean;
  /** Whether it begins with computing again what was not kept. */
  readonly recomputes: boolean;
  /** The table of a profile that says how long it takes. */
  readonly time: 'forwardMs' | 'backwardMs' | 'backwardInputMs' | 'backwardWeightMs';
}

export const passes: Readonly<Record<PassKind, PassRow>> = {
  forward: {
    letter: 'F',
    colour: '#4c8bd6',
    direction: 'forward',
    exchanges: true,
    does: ['forward'],
    needs: [],
    keeps: 1,
    addsGradients: false,
    recomputes: false,
    time: 'forwardMs',
  },
  backward: {
    letter: 'B',
    colour: '#e08a3c',
    direction: 'backward',
    exchanges: true,
    does: ['backward-input', 'backward-weight'],
    needs: ['forward'],
    keeps: -1,
    addsGradients: true,
    recomputes: true,
    time: 'backwardMs',
  },
  'backward-input': {
    letter: 'I',
    colour: '#e08a3c',
    direction: 'backward',
    exchanges: true,
    does: ['backward-input'],
    needs: ['forward'],
    keeps: 0,
    addsGradients: false,
    recomputes: true,
    time: 'backwardInputMs',
  },
  'backward-weight': {
    letter: 'W',
    colour: '#c9c052',
    direction: 'backward',
    exchanges: false,
    does: ['backward-weight'],
    needs: ['forward', 'backward-input'],
    keeps: -1,
    addsGradients: true,
    recomputes: false,
    time: 'backwardWeightMs',
  },
};

/** The kinds of passes, in the table's order. */
export const passKinds: readonly PassKind[] = Object.keys(passes) as PassKind[];

export interface PayloadRow {
  /** In texts. */
  readonly letter: string;
  /** In charts. */
  readonly colour: string;
  /** The pass that takes it. */
  readonly direction: Direction;
  /** From the stage at this distance to its taker; 'feed': from the data's holder to one end of the pipeline. */
  readonly from: -1 | 1 | 'feed';
  /** Which leaves first of those that are ready at the same time for the same micro-batch. */
  readonly rank: number;
}

export const payloads: Readonly<Record<Payload, PayloadRow>> = {
  activation: { letter: 'A', colour: '#9cc3f0', direction: 'forward', from: -1, rank: 1 },
  gradient: { letter: 'G', colour: '#f2c59b', direction: 'backward', from: 1, rank: 2 },
  input: { letter: 'X', colour: '#b5d9a5', direction: 'forward', from: 'feed', rank: 0 },
  label: { letter: 'Y', colour: '#7fb069', direction: 'forward', from: 'feed', rank: 3 },
};

/** What stages exchange, by direction. */
export const exchanged: Readonly<Record<Direction, 'activation' | 'gradient'>> = {
  forward: 'activation',
  backward: 'gradient',
};
