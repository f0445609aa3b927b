// FTPipeHD, §IV-D: dynamic partition against PipeDream's on two processes of a fast laptop and a desktop PC that is ten
// times slower. The pipeline is asynchronous: a batch leaves it every period of its slowest part.

import type { Cluster, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { profileOfKinds } from '../../cluster/device-kinds.ts';
import { links } from '../../cluster/links.ts';
import { deviceTimes, layerTimes } from '../../cluster/times.ts';
import { modelTable } from '../../runtime/host/models.ts';
import { deviation, type Experiment, markdownTable, planWith, times, withBandwidth } from './experiment.ts';

/** The batch size of FTPipeHD's experiments on laptops. */
export const batchSize = 256;

/** The slowest part: a stage's forward and backward, or one direction of a link. */
export function periodMs({ stages }: Pick<PlanLayout, 'stages'>, profile: Profile, cluster: Cluster): number {
  const table = links(cluster);
  const parts = stages.map(({ layers: [first, end], devices: [name = ''] }, index) => {
    const place = table.deviceIndex(name);
    const times = layerTimes(
      deviceTimes(profile, cluster.devices[place] ?? { name, memoryMiB: 0 }),
      profile.batchSizes,
    );
    const next = stages[index + 1]?.devices[0];
    const bytes = batchSize * (profile.layers[end - 1]?.outputBytes ?? 0);
    const sendMs = next === undefined ? 0 : table.occupancyMs(place, table.deviceIndex(next), bytes);
    return Math.max(times.forwardMs(first, end, batchSize) + times.backwardMs(first, end, batchSize), sendMs);
  });
  return Math.max(...parts);
}

export const ftpipehd: Experiment = async (testbeds) => {
  const table = await modelTable('mobilenet-v2-cifar');
  const options = { batchSize, microBatchSize: batchSize };
  const ratios = [100, 1000].map((mbps) => {
    const cluster = withBandwidth(testbeds('ftpipehd'), mbps);
    const profile = profileOfKinds(table, cluster);
    // PipeDream, and FTPipeHD before its first measurement: all devices equal the central node.
    const alike: Cluster = {
      ...cluster,
      devices: cluster.devices.map((device) => ({ ...device, kind: 'macbook-m1' })),
    };
    const even = planWith(profileOfKinds(table, alike), alike, 'ftpipehd', options).plan;
    const dynamic = planWith(profile, cluster, 'ftpipehd', options).plan;
    const alone = (name: string): number =>
      periodMs(
        { stages: [{ layers: [0, profile.layers.length], devices: [name], samples: [batchSize], inFlight: 1 }] },
        profile,
        cluster,
      );
    return {
      mbps,
      pipeDreamMs: even === undefined ? Number.NaN : periodMs(even, profile, cluster),
      dynamicMs: dynamic === undefined ? Number.NaN : periodMs(dynamic, profile, cluster),
      laptopMs: alone('macbook-1'),
      desktopMs: alone('desktop'),
    };
  });
  const rows = ratios.flatMap(({ mbps, pipeDreamMs, dynamicMs, laptopMs, desktopMs }) => {
    const row = (what: string, published: number, ours: number, isFitted = false): string[] => [
      `${mbps} Mbps`,
      what,
      times(published),
      times(ours),
      isFitted ? 'fitted' : deviation(ours, published),
    ];
    return [
      row('PipeDream over FTPipeHD', 396.37 / 58.03, pipeDreamMs / dynamicMs),
      row('one laptop over FTPipeHD', 147.45 / 58.03, laptopMs / dynamicMs),
      row('one desktop over one laptop', 1453.07 / 147.45, desktopMs / laptopMs, true),
    ];
  });
  const text = `MobileNetV2 (the CIFAR variant), batch ${batchSize}: time of PipeDream, whose partition takes all \
devices for alike, over that of FTPipeHD's (eq. 4–7), and of the laptop alone. The paper's times
are minutes until convergence: 58.03 (FTPipeHD), 396.37 (PipeDream), 147.45 (one laptop), 1453.07 (one desktop PC).

${markdownTable(['links', 'ratio', 'paper', 'ours', 'difference'], rows)}

Only the two single-machine times were used. The paper does not give its bandwidth; computing binds at either of \
these. In the paper two processes on one
laptop and a slow desktop PC are 2.5 times as fast as one process on the laptop, more than the sum of their speeds \
(2.1): the two processes do not share the laptop's cores as one uses them alone.`;
  return { title: 'FTPipeHD, §IV-D: 6.8 times faster than PipeDream', text, charts: [] };
};
