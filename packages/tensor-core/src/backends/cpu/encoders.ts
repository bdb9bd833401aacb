// The functions that encode kernel calls as commands, by the calls' names.

import type { KernelCalls, KernelName } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';
import * as attention from './encode-attention.js';
import { custom } from './encode-custom.js';
import * as elementwise from './encode-elementwise.js';
import * as gather from './encode-gather.js';
import { matmul } from './encode-matmul.js';
import * as norm from './encode-norm.js';
import * as optimizer from './encode-optimizer.js';
import * as rows from './encode-rows.js';

export type Encoders = {
  readonly [K in KernelName]: (call: KernelCalls[K], writer: CommandWriter) => void;
};

export const ENCODERS: Encoders = {
  ...attention,
  ...elementwise,
  ...rows,
  ...gather,
  ...norm,
  ...optimizer,
  matmul,
  custom,
};
