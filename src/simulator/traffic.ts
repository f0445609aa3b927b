// What a Program's devices receive and send: bytes over links, frames and passes, by which their processors pay
// (cluster/overhead.ts). One micro-batch stands for all.

import { defined } from '../assert.ts';
import type { Cluster, Profile } from '../cluster/cluster.ts';
import { encodedFraction } from '../cluster/compression.ts';
import type { PassTraffic, Traffic } from '../cluster/overhead.ts';
import { type PassKind, type Payload, passes, payloads } from '../schedule/passes.ts';
import type { DeviceProgram, LayerRange, Program, Receive, Send } from '../schedule/program.ts';

/** What a device receives and sends of a micro-batch, by what it is. */
export type DeviceTraffic = Readonly<Record<Payload, PassTraffic>>;

type Changing<Of> = { -readonly [Key in keyof Of]: Of[Key] extends number ? number : Changing<Of[Key]> };

/**
 * By device, in the order of the Program. Inputs and labels are frames wherever they come from; they are bytes where
 * they cross a link.
 */
export function trafficByDevice(
  { devices }: Program,
  profile: Profile,
  { dataDevice }: Pick<Cluster, 'dataDevice'>,
): ReadonlyMap<string, DeviceTraffic> {
  const found = new Map(devices.map(({ device }) => [device, noTraffic()]));
  for (const { device, layers, instructions } of devices) {
    const own = defined(found.get(device), device);
    for (const step of instructions) {
      if ((step.kind !== 'send' && step.kind !== 'receive') || step.microBatch !== 0) continue;
      const sender = step.kind === 'send' ? device : (step.from ?? dataDevice ?? device);
      const isFed = step.kind === 'receive' && step.from === null && sender !== device;
      const bytes = step.kind === 'receive' && sender === device ? 0 : pieceBytes(step, profile, layers);
      const ends = [
        own[step.payload][step.kind === 'send' ? 'sent' : 'received'],
        ...(isFed ? [found.get(sender)?.[step.payload].sent] : []),
      ];
      for (const end of ends) {
        if (end === undefined) continue;
        end.bytes += bytes;
        end.frames++;
      }
    }
  }
  return found;
}

function noTraffic(): Changing<DeviceTraffic> {
  const none = (): Changing<PassTraffic> => ({
    received: { bytes: 0, frames: 0, passes: 0 },
    sent: { bytes: 0, frames: 0, passes: 0 },
  });
  return { input: none(), label: none(), activation: none(), gradient: none(), derivative: none() };
}

/** What a pass receives and sends. What the data's holder hands out goes with the passes that need no others. */
export function passTraffic(kind: PassKind, traffic: DeviceTraffic): PassTraffic {
  const { takes, gives, needs } = passes[kind];
  const handsOut: readonly Payload[] = needs.length === 0 ? ['input', 'label'] : [];
  const sum = (payloadsOf: readonly Payload[], end: 'received' | 'sent', passCount: number): Traffic => ({
    bytes: payloadsOf.reduce((bytes, payload) => bytes + traffic[payload][end].bytes, 0),
    frames: payloadsOf.reduce((frames, payload) => frames + traffic[payload][end].frames, 0),
    passes: passCount,
  });
  return { received: sum(takes, 'received', 0), sent: sum([...handsOut, ...gives], 'sent', 1) };
}

/** Frames that each device receives and sends in a round. */
export function framesOfRound(traffic: DeviceTraffic, microBatchCount: number): number {
  const frames = Object.values(traffic).map(({ received, sent }) => received.frames + sent.frames);
  return microBatchCount * frames.reduce((sum, count) => sum + count, 0);
}

/** Bytes of a piece on its way, as the device with these layers sends or receives it. */
function pieceBytes(step: Send | Receive, profile: Profile, layers: LayerRange): number {
  const { kind, payload, encoding } = step;
  const isBehind = (payloads[payload].from === 1) !== (kind === 'send');
  const plainBytes = carriedBytes(step, payloadBytes(profile, payload, layers[isBehind ? 1 : 0]));
  return plainBytes * encodedFraction(encoding);
}

/**
 * Bytes of a piece as it is, of a payload that weighs `sampleBytes` a sample: activations travel with their tangents,
 * of which each is as large; derivatives are one number for each tangent, whatever the samples.
 */
export function carriedBytes({ payload, samples, tangents = 0 }: Send | Receive, sampleBytes: number): number {
  if (payload === 'derivative') return 4 * tangents;
  return (samples[1] - samples[0]) * sampleBytes * (1 + tangents);
}

/** What one sample of a payload weighs on its way over the border before layer `cut`. */
export function payloadBytes({ inputBytes, labelBytes, layers }: Profile, payload: Payload, cut: number): number {
  if (payload === 'input') return inputBytes;
  if (payload === 'label') return labelBytes;
  if (payload === 'derivative') return 0;
  return defined(layers[cut - 1], `layer ${cut - 1}`).outputBytes;
}

/** Of the device that receives a payload: the border that it comes over. */
export function receivedAt(payload: Payload, { layers: [first, end] }: Pick<DeviceProgram, 'layers'>): number {
  return payloads[payload].from === 1 ? end : first;
}
