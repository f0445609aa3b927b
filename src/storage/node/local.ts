// Checkpoints and run folders on this machine's disk, for users of the library.

import * as checkpoints from '../checkpoints.ts';
import type { Disk } from '../disk.ts';
import * as folders from '../run-folder.ts';
import { nodeDisk } from './disk.ts';

/** `Options`, with the disk as one of them that may be left out: this machine's then. */
type OnThisDisk<Options extends { readonly disk: Disk }> = Omit<Options, 'disk'> & { readonly disk?: Disk };

/** As in checkpoints.ts. */
export function saveCheckpoint(
  folder: string,
  checkpoint: checkpoints.Checkpoint,
  options: OnThisDisk<checkpoints.CheckpointOptions> = {},
): Promise<string> {
  return checkpoints.saveCheckpoint(folder, checkpoint, { disk: nodeDisk, ...options });
}

/** As in checkpoints.ts. */
export function loadLatestCheckpoint(
  folder: string,
  options: OnThisDisk<checkpoints.CheckpointOptions> = {},
): Promise<checkpoints.FoundCheckpoint> {
  return checkpoints.loadLatestCheckpoint(folder, { disk: nodeDisk, ...options });
}

/** As in run-folder.ts. */
export function createRunFolder(
  run: folders.NewRun,
  options: OnThisDisk<folders.RunFolderOptions> = {},
): Promise<folders.RunFolder> {
  return folders.createRunFolder(run, { disk: nodeDisk, ...options });
}

/** As in run-folder.ts. */
export function resumeRunFolder(
  path: string,
  completedRounds: number,
  options: OnThisDisk<folders.RunFolderOptions> = {},
): Promise<folders.RunFolder> {
  return folders.resumeRunFolder(path, completedRounds, { disk: nodeDisk, ...options });
}
