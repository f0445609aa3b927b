// All targets of fuzzing. Fast targets have larger shares, so that a million inputs take an acceptable time.

import { InputError, ProtocolError, RunError } from '../errors.ts';
import type { TargetEntry } from './target.ts';
import {
  adapterConfigTarget,
  checkoutConfigTarget,
  checkoutIndexTarget,
  evaluationTarget,
} from './targets/checkouts.ts';
import { compressedTarget } from './targets/compressed.ts';
import { helloTarget, messageTarget } from './targets/control.ts';
import { cifarTarget, csvTarget, dataSpecTarget, idxTarget, npyTarget, npzTarget } from './targets/data.ts';
import { clusterTarget, planTarget, profileTarget, settingsTarget } from './targets/documents.ts';
import { frameTarget } from './targets/frames.ts';
import { inferenceTarget } from './targets/inference.ts';
import { acknowledgementTarget, linkTarget, Refused, webSocketTarget } from './targets/links.ts';
import { modelMessageTarget, onnxTarget } from './targets/models.ts';
import { plantedTargets } from './targets/planted.ts';
import { recordsTarget, sealedTarget } from './targets/sealed.ts';
import { checkpointTarget, logTarget, runSettingsTarget } from './targets/stored.ts';
import { certificateRequestTarget, discoveryTarget, headerTarget, joinCodeTarget } from './targets/strangers.ts';
import { safetensorsTarget } from './targets/weights.ts';
import { commandTarget, recordedTarget } from './targets/window.ts';

/** All targets, planted ones last. */
export const targets: readonly TargetEntry[] = [
  { name: 'frame', share: 20, refusals: [ProtocolError], create: frameTarget },
  { name: 'link', share: 8, refusals: [Refused], create: linkTarget },
  { name: 'websocket', share: 3, refusals: [Refused], create: webSocketTarget },
  { name: 'records', share: 5, refusals: [ProtocolError], create: recordsTarget },
  { name: 'sealed', share: 0.1, refusals: [Refused], create: sealedTarget },
  { name: 'acknowledgement', share: 10, refusals: [ProtocolError], create: acknowledgementTarget },
  { name: 'compressed', share: 10, refusals: [ProtocolError], create: compressedTarget },
  { name: 'hello', share: 10, refusals: [ProtocolError], create: helloTarget },
  { name: 'message', share: 8, refusals: [ProtocolError], create: messageTarget },
  { name: 'model-message', share: 0.2, refusals: [InputError, ProtocolError, RunError], create: modelMessageTarget },
  { name: 'discovery', share: 1, refusals: [Refused], create: discoveryTarget },
  { name: 'join-code', share: 5, refusals: [Refused], create: joinCodeTarget },
  { name: 'header', share: 5, refusals: [Refused], create: headerTarget },
  { name: 'request', share: 0.2, refusals: [ProtocolError], create: certificateRequestTarget },
  { name: 'inference', share: 5, refusals: [InputError], create: inferenceTarget },
  { name: 'command', share: 5, refusals: [InputError], create: commandTarget },
  { name: 'recorded', share: 3, refusals: [InputError], create: recordedTarget },
  { name: 'onnx', share: 0.6, refusals: [InputError], create: onnxTarget },
  { name: 'safetensors', share: 10, refusals: [InputError], create: safetensorsTarget },
  { name: 'checkout-config', share: 0.5, refusals: [InputError], create: checkoutConfigTarget },
  { name: 'checkout-index', share: 5, refusals: [InputError], create: checkoutIndexTarget },
  { name: 'adapter-config', share: 5, refusals: [InputError], create: adapterConfigTarget },
  { name: 'evaluation', share: 3, refusals: [InputError], create: evaluationTarget },
  { name: 'checkpoint', share: 0.8, refusals: [InputError], create: checkpointTarget },
  { name: 'log', share: 1, refusals: [InputError], create: logTarget },
  { name: 'run-settings', share: 0.5, refusals: [InputError], create: runSettingsTarget },
  { name: 'cluster', share: 0.5, refusals: [InputError], create: clusterTarget },
  { name: 'profile', share: 0.3, refusals: [InputError], create: profileTarget },
  { name: 'plan', share: 0.5, refusals: [InputError], create: planTarget },
  { name: 'settings', share: 0.5, refusals: [InputError], create: settingsTarget },
  { name: 'data-spec', share: 5, refusals: [InputError], create: dataSpecTarget },
  { name: 'idx', share: 5, refusals: [InputError], create: idxTarget },
  { name: 'csv', share: 5, refusals: [InputError], create: csvTarget },
  { name: 'npy', share: 5, refusals: [InputError], create: npyTarget },
  { name: 'npz', share: 4, refusals: [InputError], create: npzTarget },
  { name: 'cifar10', share: 1, refusals: [InputError], create: cifarTarget },
  ...plantedTargets,
];

/** The target of this name. Throws InputError. */
export function targetOf(name: string): TargetEntry {
  const found = targets.find((target) => target.name === name);
  if (found !== undefined) return found;
  const known = targets.filter(({ share }) => share > 0).map((target) => target.name);
  throw new InputError(`There is no target "${name}"; use one of ${known.join(', ')}.`);
}
