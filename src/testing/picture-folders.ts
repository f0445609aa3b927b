// Folders of small pictures that differ by class in colour and by file in pattern. Used by tests only.

import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import sharp from 'sharp';
import { createRandom } from '../random.ts';

/** Writes `count` pictures of each class into `folder`/CLASS: PNG and JPEG by turns, of sizes around 24 pixels. */
export async function writePictures(folder: string, classes: readonly string[], count: number): Promise<void> {
  for (const [label, name] of classes.entries()) {
    await mkdir(join(folder, name), { recursive: true });
    for (let index = 0; index < count; index++) {
      const [width, height] = [20 + ((index * 3) % 9), 20 + ((index * 5) % 7)];
      const random = createRandom(label, index);
      const pixels = Uint8Array.from({ length: width * height * 3 }, (_, at) =>
        Math.min(255, (at % 3 === label % 3 ? 120 : 40) + random.integer(120)),
      );
      const picture = sharp(pixels, { raw: { width, height, channels: 3 } });
      await picture.toFile(join(folder, name, `${index}.${index % 2 === 0 ? 'png' : 'jpg'}`));
    }
  }
}
