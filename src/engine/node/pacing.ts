// Limits on how much of a machine an engine takes: pauses between the runs of ONNX Runtime's sessions, so that
// computing takes a given part of the time, and longer ones while others use the machine. Coarse and honest: a run that
// has begun is not interrupted. Node only.

import { cpus } from 'node:os';
import { setTimeout } from 'node:timers/promises';
import type { OnnxRuntime, RuntimeSession } from '../onnxruntime-module.ts';

export interface PacingOptions {
  /** The part of the time in which sessions may run, above 0 and at most 1. */
  readonly maxCpu: number;
  /** Steps back while others use more than a quarter of the machine: then it computes a tenth of the time. */
  readonly isCourteous: boolean;
  /** Milliseconds, monotonic. Default performance.now. */
  readonly now?: () => number;
  /** Default: a timer. */
  readonly pause?: (milliseconds: number) => Promise<unknown>;
  /**
   * Processor time of all processes and of this one, and what there was in all, in milliseconds. Default: the operating
   * system's counts.
   */
  readonly usage?: () => Usage;
}

/** Counts of processor time since some moment. */
export interface Usage {
  readonly allMs: number;
  readonly ownMs: number;
  readonly availableMs: number;
}

const courteousShare = 0.1;
const othersLimit = 0.25;
const lookEveryMs = 1_000;
/** No single pause is longer: a device that seems dead is given up. */
const maxPauseMs = 2_000;

/** The runtime with pauses after its sessions' runs; itself where there is nothing to limit. */
export function paced(runtime: OnnxRuntime, options: PacingOptions): OnnxRuntime {
  if (options.maxCpu >= 1 && !options.isCourteous) return runtime;
  const {
    now = () => performance.now(),
    pause = (milliseconds: number) => setTimeout(milliseconds),
    usage = systemUsage,
  } = options;
  const share = options.isCourteous ? courteousLimit(options.maxCpu, now, usage) : () => options.maxCpu;
  const wrapped = (session: RuntimeSession): RuntimeSession => ({
    async run(feeds, fetches) {
      const startMs = now();
      try {
        return await session.run(feeds, fetches);
      } finally {
        // A run that ends with an error has computed too, and may have computed all (outputs-in-place.ts).
        const pauseMs = (now() - startMs) * (1 / share() - 1);
        if (pauseMs > 0) await pause(Math.min(pauseMs, maxPauseMs));
      }
    },
    release: () => session.release(),
  });
  return {
    Tensor: runtime.Tensor,
    InferenceSession: { create: async (model, given) => wrapped(await runtime.InferenceSession.create(model, given)) },
  };
}

/** What may be taken at the moment: looks once a second how much others took since. */
function courteousLimit(maxCpu: number, now: () => number, usage: () => Usage): () => number {
  let [seen, seenMs, share] = [usage(), now(), maxCpu];
  return () => {
    if (now() - seenMs < lookEveryMs) return share;
    const current = usage();
    const othersMs = current.allMs - seen.allMs - (current.ownMs - seen.ownMs);
    const isBusy = othersMs > othersLimit * (current.availableMs - seen.availableMs);
    [seen, seenMs, share] = [current, now(), isBusy ? Math.min(maxCpu, courteousShare) : maxCpu];
    return share;
  };
}

function systemUsage(): Usage {
  const [allMs, availableMs] = cpus().reduce(
    ([busy, whole], { times }) => {
      const used = times.user + times.nice + times.sys + times.irq;
      return [busy + used, whole + used + times.idle];
    },
    [0, 0],
  ) as [number, number];
  const { user, system } = process.cpuUsage();
  return { allMs, availableMs, ownMs: (user + system) / 1000 };
}
