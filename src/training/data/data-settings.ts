// How data are read and prepared, as the user says it. Each kind of data takes those that concern it.

/** What to do about files that cannot be read. */
export const badFileChoices = ['refuse', 'skip'] as const;

export interface DataSettings {
  /** The side of pictures, for models that leave it open. */
  readonly imageSize?: number;
  /** A preprocessor_config.json: size, mean and deviation of pictures. */
  readonly preprocessor?: string;
  /** Names of pictures/augment.ts, separated by commas. */
  readonly augment?: string;
  /** Parameter of mixup's Beta distribution; 0: none. */
  readonly mixup: number;
  /** The fraction of each label that is spread over all classes. */
  readonly labelSmoothing: number;
  /** What samples of each class count: numbers with commas, or "balanced". */
  readonly classWeights?: string;
  readonly onBadFile: (typeof badFileChoices)[number];
  /** The fraction of samples to test on, where the data have no test part of their own. */
  readonly evalSplit: number;
  /** The column of labels in a table; several, separated by commas, for several labels a sample. */
  readonly label?: string;
  /** The columns of inputs in a table, separated by commas. */
  readonly columns?: string;
  /** Whether numbers of a table are standardised. */
  readonly standardize: boolean;
  /** The tokenizer.json of texts, or its folder. */
  readonly tokenizer?: string;
  /** Tokens of a text at most, or of a block in next-token training, where the model leaves it open. */
  readonly maxLength?: number;
  /** Batches of texts of like length, padded to that. */
  readonly groupByLength: boolean;
  /** Threads that read and decode samples. Absent: as many as the machine has cores beyond one, 1 to 4. */
  readonly dataThreads?: number;
  /** MiB of decoded samples that are kept for the next epoch. */
  readonly dataCache: number;
}

/** What holds where nobody says anything. */
export const defaultDataSettings: DataSettings = {
  mixup: 0,
  labelSmoothing: 0,
  onBadFile: 'refuse',
  evalSplit: 0,
  standardize: true,
  groupByLength: false,
  dataCache: 512,
};
