// GridSample on images: each output element is a weighted sum of a few input elements, read by Gather at indices
// computed from the grid.

import { int, intAttribute, stringAttribute } from '../graph.ts';
import { check } from '../operators/define.ts';
import type { Composite } from './composite.ts';
import type { Writer } from './writer.ts';

/**
 * x [N, C, H, W], grid [N, h, w, 2] of (column, row) in [−1, 1]. Linear and nearest; padding with zeros or the border.
 */
export const gridSample: Composite = {
  inputs: [2, 2],
  attributes: { align_corners: 'int', mode: 'string', padding_mode: 'string' },
  write(w) {
    const { node } = w;
    const [x, grid] = [w.input(0), w.input(1)];
    check(
      w.shape(x).length === 4 && w.shape(grid).length === 4,
      node,
      () => 'wants images [N, C, H, W]; volumes are not supported',
    );
    const [samples, channels, height, width] = w.shape(x) as [number, number, number, number];
    const [, rows, columns] = w.shape(grid) as [number, number, number];
    const mode = stringAttribute(node, 'mode', 'linear');
    const padding = stringAttribute(node, 'padding_mode', 'zeros');
    check(
      ['linear', 'bilinear', 'nearest'].includes(mode),
      node,
      () => `has mode "${mode}"; supported are "linear" and "nearest"`,
    );
    check(
      padding === 'zeros' || padding === 'border',
      node,
      () => `has padding_mode "${padding}"; supported are "zeros" and "border"`,
    );
    const [gridX, gridY] = w.split(w.reshape(grid, [samples, rows * columns, 2]), 2, [1, 1]) as [string, string];
    const corners = intAttribute(node, 'align_corners', 0) !== 0;
    const pixels = (value: string, size: number): string => {
      // −1 … 1 to 0 … size − 1 (centres of the outer pixels) or to −½ … size − ½ (their borders)
      const position = corners
        ? w.scale(w.add(value, w.like(value, 1)), (size - 1) / 2)
        : w.sub(w.scale(w.add(value, w.like(value, 1)), size / 2), w.like(value, 0.5));
      return padding === 'border' ? w.op('Clip', [position, w.like(value, 0), w.like(value, size - 1)]) : position;
    };
    const [px, py] = [pixels(gridX, width), pixels(gridY, height)];
    // Pixels as rows of channels, so that one index reads a pixel.
    const table = w.reshape(w.transpose(x, [0, 2, 3, 1]), [samples, height * width, channels]);
    const read = (row: string, column: string): string => pixelsAt(w, { table, row, column, height, width });
    const result = mode === 'nearest' ? read(w.op('Round', [py]), w.op('Round', [px])) : bilinear(w, px, py, read);
    return [w.transpose(w.reshape(result, [samples, rows, columns, channels]), [0, 3, 1, 2])];
  },
};

/** Σ over the four neighbours of pixel · weight. */
function bilinear(w: Writer, px: string, py: string, read: (row: string, column: string) => string): string {
  const axis = (position: string): readonly (readonly [place: string, weight: string])[] => {
    const low = w.op('Floor', [position]);
    const share = w.sub(position, low);
    return [
      [low, w.sub(w.like(share, 1), share)],
      [w.add(low, w.like(low, 1)), share],
    ];
  };
  const [acrossY, acrossX] = [axis(py), axis(px)];
  const terms = acrossY.flatMap(([row, rowWeight]) =>
    acrossX.map(([column, columnWeight]) => w.mul(read(row, column), w.mul(rowWeight, columnWeight))),
  );
  return w.op('Sum', terms);
}

/** The pixels [N, places, C] at whole rows and columns [N, places, 1]; zeros outside the image. */
function pixelsAt(
  w: Writer,
  { table, row, column, height, width }: { table: string; row: string; column: string; height: number; width: number },
): string {
  const clamp = (place: string, size: number): string =>
    w.op('Clip', [place, w.like(place, 0), w.like(place, size - 1)]);
  const [nearRow, nearColumn] = [clamp(row, height), clamp(column, width)];
  const offset = w.cast(w.add(w.scale(nearRow, width), nearColumn), 'int64');
  const pixels = w.op('GatherND', [table, offset], { batch_dims: int(1) });
  const inside = w.op('And', [w.op('Equal', [row, nearRow]), w.op('Equal', [column, nearColumn])]);
  return w.op('Where', [inside, pixels, w.like(pixels, 0)]);
}
