// @ts-nocheck
// The results of bench/lab.ts as Markdown.

const percent = (value) => `${(100 * value).toFixed(1)} %`;

function table(head, rows) {
  if (rows.length === 0) return '';
  return [head, head.map(() => '---'), ...rows].map((row) => `| ${row.join(' | ')} |`).join('\n');
}

/** Every case: measured beside predicted. */
export function casesTable(cases) {
  return table(
    [
      'cluster, Mbps',
      'form',
      'plan',
      'measured ms',
      'predicted ms',
      'difference',
      'with the profile as the rounds before correct it',
      'difference',
      'every other round ms',
      'with the profile as processors’ work in the rounds between corrects it',
      'difference',
      'x best device',
      'busiest link',
    ],
    cases.map((one) => [
      one.cluster,
      one.form,
      one.plan,
      one.measuredRoundMs,
      one.predictedRoundMs,
      percent(one.difference),
      one.settledRoundMs,
      percent(one.settledDifference),
      one.checkedRoundMs,
      one.correctedRoundMs,
      percent(one.correctedDifference),
      one.speedupOverBestDevice ?? '',
      one.busiestLink === null ? '' : `${one.busiestLink} ${percent(one.linkUtilisation)}`,
    ]),
  );
}

/** The device of each case that needs the most above what was predicted. */
export function memoryTable(cases) {
  return table(
    ['cluster, Mbps', 'form', 'device', 'peak MiB', 'predicted MiB', 'above prediction + 10 % + 30 MiB'],
    cases.map(({ cluster, form, memory }) => {
      const above = ({ measuredMiB, predictedMiB }) => measuredMiB - 1.1 * predictedMiB - 30;
      const worst = memory.toSorted((a, b) => above(b) - above(a))[0];
      return [
        cluster,
        form,
        worst.device,
        worst.measuredMiB,
        worst.predictedMiB,
        above(worst) > 0 ? above(worst).toFixed(0) : 'no',
      ];
    }),
  );
}

/** Links that are the bottleneck, and AllReduces. */
export function linksTable(cases) {
  return table(
    [
      'cluster, Mbps',
      'form',
      'busiest link',
      'of the whole time',
      'while sending',
      'AllReduce ms',
      'ideal ms',
      'over',
      'ideal at what TCP carries',
      'over',
      'bytes over the ideal',
    ],
    cases.flatMap(({ cluster, form, busiestLink, linkUtilisation, utilisationWhileSending, allReduce }) => {
      if (busiestLink === null || (linkUtilisation < 0.5 && allReduce === null)) return [];
      const { measuredMs, idealMs, idealOfTcpMs, overhead } = allReduce ?? {};
      const reduced =
        allReduce === null
          ? Array(6).fill('')
          : [
              measuredMs,
              idealMs,
              percent(measuredMs / idealMs - 1),
              idealOfTcpMs,
              percent(measuredMs / idealOfTcpMs - 1),
              percent(overhead),
            ];
      return [[cluster, form, busiestLink, percent(linkUtilisation), percent(utilisationWhileSending), ...reduced]];
    }),
  );
}

/** `best` over data parallelism and over a straight pipeline, beside the paper's ratios. */
export function table4Table(cases, groups) {
  return table(
    ['row', 'over one device', 'over DP', 'paper', 'over PP', 'paper'],
    groups.flatMap(({ name, paper }) => {
      const of = (form) => cases.find((one) => one.cluster === name && one.form === form);
      const [best, dp, pp] = [of('best'), of('dp'), of('gpipe')];
      if (best === undefined || dp === undefined || pp === undefined) return [];
      const over = (other) => `${(other.measuredRoundMs / best.measuredRoundMs).toFixed(2)}x`;
      return [
        [
          name,
          best.speedupOverBestDevice === null ? '' : `${best.speedupOverBestDevice}x`,
          over(dp),
          `${paper[0]}x`,
          over(pp),
          `${paper[1]}x`,
        ],
      ];
    }),
  );
}

/** Devices whose limits a plan fills. */
export function budgetTable(results) {
  return table(
    ['cluster', 'plan', 'device', 'limit MiB', 'predicted, process and stage', 'peak', 'killed by the system'],
    results.flatMap(({ cluster, plan, devices }) =>
      devices.map((one) => [cluster, plan, one.device, one.limitMiB, one.predictedMiB, one.measuredMiB, one.killCount]),
    ),
  );
}

/** Devices by themselves, alone and all at once. */
export function togetherTable(results) {
  return table(
    ['cluster', 'devices at once', 'rounds, ms', 'beside one alone'],
    results.flatMap(({ cluster, results: runs }) => {
      const alone = runs.filter(({ devices }) => devices === 1).map(({ roundMs }) => roundMs[0]);
      const meanMs = alone.reduce((sum, ms) => sum + ms, 0) / alone.length;
      const speed = (roundMs) => roundMs.reduce((sum, ms) => sum + meanMs / ms, 0);
      return runs.map(({ devices, roundMs }) => [
        cluster,
        devices,
        roundMs.join(', '),
        `${speed(roundMs).toFixed(2)}x the samples`,
      ]);
    }),
  );
}

/** Beside PyTorch. */
export function peersTable(peers) {
  return table(
    ['cluster, Mbps', 'form', 'plan', 'Asteroid ms', 'PyTorch ms', 'ratio'],
    peers.map((one) => [
      one.cluster,
      one.form,
      one.plan,
      one.asteroidMs,
      one.pyTorchMs,
      `${(one.pyTorchMs / one.asteroidMs).toFixed(2)}x`,
    ]),
  );
}

/** Devices lost in turn, and what copies cost. */
export function recoveryTable({ cluster, batch, copies, losses }) {
  const rate = (ms) => ((1000 * batch) / ms).toFixed(1);
  const rows = losses.map((one) => [
    one.device,
    `${(one.recoveryMs / 1000).toFixed(2)} s`,
    `${(one.layoutMs / 1000).toFixed(2)} s`,
    `${(one.wholeMs / 1000).toFixed(2)} s`,
    `${one.movedMiB.toFixed(1)} MiB`,
    one.source,
    one.repeatedRounds,
    one.readySeconds === undefined ? 'no' : `after ${one.readySeconds.toFixed(0)} s`,
    rate(one.beforeMs),
    rate(one.afterMs),
    rate(one.lightMs),
    rate(one.heavyMs),
    percent(one.heavyMs / one.lightMs),
    one.respipeMs === undefined ? '-' : rate(one.respipeMs),
  ]);
  const head = [
    `${cluster}: lost`,
    'R',
    'until the layout stands',
    'planned and given out anew',
    'moved',
    'from',
    'rounds repeated',
    'devices ready',
    'samples/s before',
    'after',
    'in turn: light',
    'heavy',
    'light over heavy',
    'ResPipe',
  ];
  return `${table(head, rows)}\n\nCopies were made after ${copies.versions.join(', ')} rounds; in the second half they cost ${percent(copies.cost)} (rounds without: ${copies.baseMs.toFixed(0)} ms).`;
}

/** Links and devices that became slow. */
export function slowedTable(results) {
  const seconds = (value) => (value === undefined ? '-' : `${value.toFixed(1)} s`);
  const ms = (value) => `${value.toFixed(0)} ms`;
  const rows = results.map((one) => [
    one.what,
    seconds(one.noticed?.seconds),
    seconds(one.layoutSeconds),
    ms(one.beforeMs),
    ms(one.slowMs),
    ms(one.afterMs),
    ms(one.anewMs),
    percent(one.afterMs / one.anewMs - 1),
    one.form,
    one.anew,
    one.lost.join(' ') || '-',
  ]);
  return table(
    [
      'slow',
      'noticed',
      'another layout',
      'rounds before',
      'slow',
      'after',
      'planned anew',
      'difference',
      'the layout',
      'anew',
      'given up',
    ],
    rows,
  );
}
