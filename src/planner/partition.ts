// Straight pipelines that minimise their slowest part, by dynamic programming; used by gpipe and ftpipehd.

/** How long the parts of a pipeline take for one micro-batch. */
export interface PartTimes {
  /** Layers [first, end) on the device at this index of the order. */
  readonly stageMs: (index: number, first: number, end: number) => number;
  /** The border in front of layer `cut`, from the device at index − 1 to the one at index. */
  readonly crossMs: (index: number, cut: number) => number;
}

/** Where each device's layers end, ascending; each device has at least one layer. O(layers² · devices). */
export function straightPartition(layerCount: number, deviceCount: number, { stageMs, crossMs }: PartTimes): number[] {
  const width = layerCount + 1;
  const least = new Float64Array((deviceCount + 1) * width).fill(Number.POSITIVE_INFINITY);
  const cuts = new Int32Array((deviceCount + 1) * width);
  least[0] = 0;
  for (let count = 1; count <= deviceCount; count++) {
    for (let end = count; end <= layerCount - (deviceCount - count); end++) {
      for (let cut = end - 1; cut >= count - 1; cut--) {
        const ownMs = stageMs(count - 1, cut, end);
        const at = count * width + end;
        if (ownMs >= (least[at] as number)) break;
        const ms = Math.max(
          least[(count - 1) * width + cut] as number,
          ownMs,
          count === 1 ? 0 : crossMs(count - 1, cut),
        );
        if (ms < (least[at] as number)) [least[at], cuts[at]] = [ms, cut];
      }
    }
  }
  const ends: number[] = [];
  for (let [count, end] = [deviceCount, layerCount]; count > 0; count--) {
    ends.unshift(end);
    end = cuts[count * width + end] as number;
  }
  return ends;
}
