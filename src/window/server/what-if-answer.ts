// What a change would do to the plan that runs: the answer of the planner, for a viewer to read. Pure, and takes
// seconds: it runs in a thread of its own (what-if-thread.ts).

import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import type { OptimizerState } from '../../cluster/memory.ts';
import { predictLoss } from '../../planner/replan/predict-loss.ts';
import { type Change, whatIf } from '../../planner/what-if.ts';
import { inferenceSchedule } from '../../schedule/schedules.ts';
import type { WhatIfAnswer, WhatIfChange } from '../messages.ts';

export interface WhatIfQuestion {
  readonly plan: Plan;
  readonly profile: Profile;
  readonly cluster: Cluster;
  readonly optimizerState: OptimizerState;
  readonly change: WhatIfChange;
}

/** Answers a question. Throws InputError for what cannot happen, and where nothing fits afterwards. */
export function answerWhatIf(question: WhatIfQuestion, now: () => number): WhatIfAnswer {
  const { change, plan } = question;
  if (change.kind === 'lose' && plan.schedule !== inferenceSchedule) return loss(question, change.device, now);
  const { profile, cluster, optimizerState } = question;
  const { before, kept, after, move } = whatIf({
    ...{ cluster, profileFor: () => profile, current: plan, changes: [changeOf(change)], optimizerState },
    ...{ batchSize: plan.batchSize, microBatchSize: plan.microBatchSize, planner: 'asteroid' },
  });
  // Nobody moves to a plan that is slower than the one that runs.
  const isKept = kept !== undefined && kept.predicted.roundMs <= after.predicted.roundMs;
  return {
    before: speed(before),
    ...(kept === undefined ? {} : { kept: speed(kept) }),
    after: speed(isKept ? kept : after),
    movedBytes: isKept ? 0 : move.bytes,
    stages: stagesOf(isKept ? kept : after),
    ...(isKept ? { remark: 'No other plan would be faster.' } : {}),
  };
}

function loss(
  { plan, profile, cluster, optimizerState }: WhatIfQuestion,
  device: string,
  now: () => number,
): WhatIfAnswer {
  const { before, light, refusal, losses } = predictLoss({
    ...{ cluster, profile, current: plan, lost: [device], batchSize: plan.batchSize, optimizerState, now },
    ...{ replicateBatchDependent: false, detectionMs: 0, planner: 'asteroid', microBatchSize: plan.microBatchSize },
  });
  const isFromCheckpoint = losses.some(({ restoredFrom }) => restoredFrom === 'checkpoint');
  const remarks = [
    ...(refusal === undefined ? [] : [refusal]),
    ...(isFromCheckpoint ? ['Only the last checkpoint has its weights: the rounds since then are lost.'] : []),
    'A closed connection is seen at once; a silent device after some seconds, which come on top.',
  ];
  return {
    ...{ before: speed(before), after: speed(light.plan), pauseMs: light.totalMs, movedBytes: light.bytes },
    stages: stagesOf(light.plan),
    remark: remarks.join(' '),
  };
}

function changeOf(change: WhatIfChange): Change {
  switch (change.kind) {
    case 'lose':
      return { kind: 'leave', device: change.device };
    case 'slow':
      return change;
    case 'link':
      return { kind: 'link', between: change.between, speed: { bandwidthMbps: change.mbps } };
  }
}

function speed({ predicted: { roundMs, samplesPerS } }: Plan): WhatIfAnswer['before'] {
  return { roundMs, samplesPerS };
}

function stagesOf({ stages }: Plan): WhatIfAnswer['stages'] {
  return stages.map(({ layers, devices }) => ({ layers, devices }));
}
