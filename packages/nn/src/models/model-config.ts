// The configurations of all supported models as one type.

import type { DecoderConfig } from './decoder-config.js';
import type { Gpt2Config } from './gpt2-config.js';

/** The configuration of a model. Its `model_type` says which kind it is. */
export type ModelConfig = Gpt2Config | DecoderConfig;
