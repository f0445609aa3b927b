// All that anyone may know of a pass and of what travels between passes: one row each. The check, the simulator, the
// drawings, recomputation and the planner read these tables; a pass without a row does not compile.
//
//   stage p − 1        stage p         stage p + 1        F forward, B backward (both of its halves at once),
//        ── activation ──▶ F ── activation ──▶             I input gradient, W weight gradient: the halves of B
//        ◀── gradient ── B, I ◀── gradient ──
//                          W
//
// Forward gradients (AsyncFGD) have one pass alone: T, forward with tangents, which travel with the activations. After
// it the last stage gives everybody derivatives: one number for each micro-batch and tangent.

/**
 * What travels: 'input' and 'label' from the data's holder, 'activation' forward, 'gradient' backward, 'derivative'
 * from the last stage to all that update.
 */
export type Payload = 'input' | 'label' | StagePayload;

/** What one stage gives to another. */
export type StagePayload = 'activation' | 'gradient' | 'derivative';

/** What a device computes of a micro-batch. */
export type PassKind = 'forward' | 'backward' | 'backward-input' | 'backward-weight' | 'tangent';

/** A pass that is not made of others. */
export type ElementaryPass = Exclude<PassKind, 'backward'>;

/** The passes that add to the gradients of weights. Such a pass may come in pieces of layers. */
export type WeightPass = 'backward' | 'backward-weight';

export interface PassRow {
  /** In drawings and texts. */
  readonly letter: string;
  /** In charts. */
  readonly colour: string;
  /** What must have arrived before it. */
  readonly takes: readonly Payload[];
  /** What travels on after it. */
  readonly gives: readonly StagePayload[];
  /** What it does of a micro-batch; each once. */
  readonly does: readonly ElementaryPass[];
  /** What must have been done of the same micro-batch on the same device. */
  readonly needs: readonly ElementaryPass[];
  /** How many more micro-batches are in flight, kept for a backward pass, after it. */
  readonly keeps: 1 | 0 | -1;
  readonly addsGradients: boolean;
  /** Whether activations that were not kept are computed again at its beginning. */
  readonly recomputes: boolean;
  /** The table of a profile that says how long it takes. */
  readonly time: 'forwardMs' | 'backwardMs' | 'backwardInputMs' | 'backwardWeightMs' | 'tangentMs';
}

export const passes: {
  readonly [Kind in PassKind]: PassRow & { readonly addsGradients: Kind extends WeightPass ? true : false };
} = {
  forward: {
    letter: 'F',
    colour: '#4c8bd6',
    takes: ['input', 'label', 'activation'],
    gives: ['activation'],
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
    takes: ['gradient'],
    gives: ['gradient'],
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
    takes: ['gradient'],
    gives: ['gradient'],
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
    takes: [],
    gives: [],
    does: ['backward-weight'],
    needs: ['forward', 'backward-input'],
    keeps: -1,
    addsGradients: true,
    recomputes: false,
    time: 'backwardWeightMs',
  },
  tangent: {
    letter: 'T',
    colour: '#7a6bc4',
    takes: ['input', 'label', 'activation'],
    gives: ['activation', 'derivative'],
    does: ['forward', 'tangent'],
    needs: [],
    keeps: 0,
    addsGradients: false,
    recomputes: false,
    time: 'tangentMs',
  },
};

/** The kinds of passes, in the table's order. */
export const passKinds: readonly PassKind[] = Object.keys(passes) as PassKind[];

export function addsGradients(kind: PassKind): kind is WeightPass {
  return passes[kind].addsGradients;
}

export interface PayloadRow {
  /** In texts. */
  readonly letter: string;
  /** In charts. */
  readonly colour: string;
  /** Where it comes from: the stage before its taker (−1) or after it (1), the last stage, or the data's holder. */
  readonly from: -1 | 1 | 'last' | 'feed';
  /** Of what the feed gives: which end of the pipeline takes it. */
  readonly end?: 'first' | 'last';
  /** The order in which pieces leave that are ready at the same time and belong to the same micro-batch. */
  readonly rank: number;
}

export const payloads: {
  readonly [Of in Payload]: PayloadRow & { readonly from: Of extends StagePayload ? -1 | 1 | 'last' : 'feed' };
} = {
  activation: { letter: 'A', colour: '#9cc3f0', from: -1, rank: 1 },
  gradient: { letter: 'G', colour: '#f2c59b', from: 1, rank: 2 },
  input: { letter: 'X', colour: '#b5d9a5', from: 'feed', end: 'first', rank: 0 },
  derivative: { letter: 'D', colour: '#b9a7e6', from: 'last', rank: 4 },
  label: { letter: 'Y', colour: '#7fb069', from: 'feed', end: 'last', rank: 3 },
};

/** What decides who takes what, besides a stage's place. */
export interface Taking {
  readonly stageCount: number;
  /** Inputs and labels come from a data feed. */
  readonly hasFeed: boolean;
  /** The schedule trains (`Schedule.trains`). */
  readonly trains: boolean;
}

/**
 * Whether a stage's passes take a payload (updates take derivatives): what stages give crosses every border, what the
 * feed gives goes to one end of the pipeline. Without a feed nobody takes inputs or labels, without training nobody
 * labels.
 */
export function isTaken(payload: Payload, stage: number, { stageCount, hasFeed, trains }: Taking): boolean {
  const { from, end } = payloads[payload];
  if (from === 'last') return false;
  if (payload === 'label' && !trains) return false;
  if (from === 'feed') return hasFeed && stage === (end === 'first' ? 0 : stageCount - 1);
  return stage + from >= 0 && stage + from < stageCount;
}
