// Device kinds: performance models of the papers' devices, for planning where nothing was measured. A layer's pass over
// b samples takes
//   launchMs + max(b · flops / gigaflops, b · bytes / gigabytesPerS),   bytes: all values that its operators write,
// and its backward pass twice that. Each kind says what its constants were fitted to and how far the fit is off;
// docs/reproduction.md recomputes the residuals. A kind followed by "@N%" is that device held to N % of its speed, as
// by a CPU quota.

import { InputError } from '../errors.ts';
import type { Cluster, DeviceTimes, LayerProfile, Profile } from './cluster.ts';

/** A model's sizes without any device's times. */
export interface ModelTable extends Pick<Profile, 'model' | 'inputBytes' | 'labelBytes' | 'fixedBatch'> {
  readonly layers: readonly TableLayer[];
}

export interface TableLayer extends LayerProfile {
  /** Per sample: of every value that the layer's operators write. */
  readonly trafficBytes: number;
}

/** A performance model. */
export interface DeviceKind {
  readonly title: string;
  /** Nominal memory less what system and framework take: 1 GiB on a Jetson and a computer, 0.5 GiB on a small board. */
  readonly memoryMiB: number;
  readonly powerW?: number;
  /** Sustained arithmetic. */
  readonly gigaflops: number;
  /** Sustained traffic of the bytes above; absent: arithmetic alone counts. */
  readonly gigabytesPerS?: number;
  /** Of one layer's pass, whatever its batch. */
  readonly launchMs: number;
  /** Where the constants come from. */
  readonly source: string;
}

// Asteroid, Table 1: epochs of 50,000 images at batch 32 on Nano and TX2, EfficientNet-B1 and MobileNetV2 at 32x32
// without their first stride(s), ResNet-50 at 224x224. Four constants for six times: one share of the peak arithmetic
// (236 and 665 gigaflops), one share of the memory bandwidth (25.6 and 59.7 GB/s), and a launch time for each device.
const jetsonCompute = 0.583;
const jetsonMemory = 0.141;
const table1 = 'fitted to Asteroid Table 1 (six epoch times, four constants): within 9 %';
// Asteroid, Table 8: the same profiling runs take 51 min on a TX2 and 25 min on an NX.
const nxOverTx2 = 51 / 25;

/** All kinds by name. */
export const deviceKinds: Readonly<Record<string, DeviceKind>> = {
  'jetson-nano': {
    title: 'NVIDIA Jetson Nano, 128-core Maxwell, 4 GB',
    memoryMiB: 3072,
    powerW: 10,
    gigaflops: jetsonCompute * 236,
    gigabytesPerS: jetsonMemory * 25.6,
    launchMs: 1.64,
    source: table1,
  },
  'jetson-tx2': {
    title: 'NVIDIA Jetson TX2, 256-core Pascal, 8 GB',
    memoryMiB: 7168,
    powerW: 15,
    gigaflops: jetsonCompute * 665,
    gigabytesPerS: jetsonMemory * 59.7,
    launchMs: 0.641,
    source: table1,
  },
  'jetson-nx': {
    title: 'NVIDIA Jetson Xavier NX, 384-core Volta, 8 GB',
    memoryMiB: 7168,
    powerW: 15,
    gigaflops: nxOverTx2 * jetsonCompute * 665,
    gigabytesPerS: nxOverTx2 * jetsonMemory * 59.7,
    launchMs: 0.641 / nxOverTx2,
    source:
      'the TX2 times 2.04, the ratio of their profiling times in Asteroid Table 8 (one number, no residual; by ' +
      'the same table a TX2 is 1.6 Nanos, by Table 1 it is 2.4 to 3.1)',
  },
  minnowboard: {
    title: 'MinnowBoard Turbot, 4 x Atom E3845 at 1.91 GHz, 2 GB',
    memoryMiB: 1536,
    gigaflops: 17.3,
    launchMs: 0,
    source:
      'fitted to the throughput of the fewest boards that hold ViT-Large, ViT-Huge and BERT-Large in PipeEdge ' +
      'Fig. 4 (three numbers, one constant): within 11 %',
  },
  'rcc-ve': {
    title: 'Silicom RCC-VE, 4 x Atom C2558 at 2.4 GHz, 8 GB',
    memoryMiB: 7680,
    gigaflops: 28.1,
    launchMs: 0,
    source:
      'fitted to the throughput of one board on ViT-Large, ViT-Huge and BERT-Large in PipeEdge Fig. 4 (three ' +
      'numbers, one constant): within 2 %',
  },
  'macbook-m1': {
    title: 'MacBook Pro M1, 16 GB, one PyTorch process on its CPU',
    memoryMiB: 15360,
    gigaflops: 25.8,
    launchMs: 0,
    source:
      'fitted to FTPipeHD, training on one laptop (147.45 min) at 2.1 s a batch of 256 for 58.03 min (no residual)',
  },
  'desktop-i7': {
    title: 'desktop PC, Intel i7-8700, 64 GB, one PyTorch process on its CPU',
    memoryMiB: 64512,
    gigaflops: 2.62,
    launchMs: 0,
    source: 'fitted to FTPipeHD, training on one desktop PC (1453.07 min) as for the laptop (no residual)',
  },
  'raspberry-pi-4': {
    title: 'Raspberry Pi 4B, 4 x Cortex-A72 at 1.5 GHz, 8 GB',
    memoryMiB: 7680,
    powerW: 6,
    gigaflops: 20.8,
    launchMs: 0,
    source:
      'not fitted, no paper gives a time: 43 % of its peak of 48 gigaflops, as the two Atom boards reach on ' +
      'average of 6 operations a cycle and core',
  },
};

/** The model of a kind, with or without "@N%"; undefined for one that is not known. */
export function kindModel(kind: string): DeviceKind | undefined {
  const [, name = '', percent] = /^(.*?)(?:@(\d+(?:\.\d+)?)%)?$/.exec(kind) ?? [];
  const model = Object.hasOwn(deviceKinds, name) ? (deviceKinds[name] as DeviceKind) : undefined;
  if (model === undefined || percent === undefined) return model;
  const share = Number(percent) / 100;
  if (!(share > 0)) return undefined;
  return {
    ...model,
    title: `${model.title}, at ${percent} %`,
    gigaflops: share * model.gigaflops,
    ...(model.gigabytesPerS === undefined ? {} : { gigabytesPerS: share * model.gigabytesPerS }),
    launchMs: model.launchMs / share,
  };
}

/** Times are straight lines in the batch size, so that two points say all. */
const batchSizes: readonly number[] = [1, 32];

/** A profile from the device kinds of a cluster. Throws InputError for a device whose kind has no performance model. */
export function profileOfKinds(table: ModelTable, cluster: Cluster): Profile {
  const devices: Record<string, DeviceTimes> = {};
  for (const { name, kind } of cluster.devices) {
    const model = kind === undefined ? undefined : kindModel(kind);
    if (kind === undefined || model === undefined) {
      const what = kind === undefined ? `has no kind` : `has the kind "${kind}", which has no performance model`;
      const known = Object.keys(deviceKinds).join(', ');
      throw new InputError(
        `Device "${name}" of the cluster ${what}; give it one of ${known}, or measure it (asteroid profile) and ` +
          'use --profile.',
      );
    }
    devices[kind] ??= kindTimes(table.layers, model);
  }
  const layers = table.layers.map(({ trafficBytes, ...layer }) => layer);
  return { ...table, layers, batchSizes, devices };
}

function kindTimes(
  layers: readonly TableLayer[],
  { gigaflops, gigabytesPerS = Number.POSITIVE_INFINITY, launchMs }: DeviceKind,
): DeviceTimes {
  const forwardMs = batchSizes.map((size) =>
    layers.map(({ flops, trafficBytes }) => {
      const computeMs = flops / (gigaflops * 1e6);
      const moveMs = trafficBytes / (gigabytesPerS * 1e6);
      return launchMs + size * Math.max(computeMs, moveMs);
    }),
  );
  return { forwardMs, backwardMs: forwardMs.map((row) => row.map((ms) => 2 * ms)) };
}
