// Frames of a layout that peers have heard of before this device: they wait for it, up to what the whole state of the
// model takes.

import { ProtocolError } from '../../errors.ts';
import type { Frame } from '../../transport/link.ts';

const frameLimit = 100_000;

interface EarlyFrame {
  readonly from: string;
  readonly frame: Frame;
}

export class EarlyFrames {
  #frames: EarlyFrame[] = [];
  #bytes = 0;

  /** Throws ProtocolError where more wait than may. */
  keep(from: string, frame: Frame, limitBytes: number): void {
    this.#bytes += (frame.tensors ?? []).reduce((sum, tensor) => sum + tensor.data.byteLength, 0);
    if (this.#bytes > limitBytes || this.#frames.length >= frameLimit)
      throw new ProtocolError(
        `${from} sent more than the ${limitBytes} bytes that may wait here for a layout that the coordinator has not announced.`,
      );
    this.#frames.push({ from, frame });
  }

  /** All that waited, in the order in which it came. */
  take(): readonly EarlyFrame[] {
    const frames = this.#frames;
    [this.#frames, this.#bytes] = [[], 0];
    return frames;
  }
}
