// Text encoders, embedders and classifiers: transformers whose rows become one row a document, with
// the losses that train them. The front entry has the decoders.

export {
  type CachedInfoNceOptions,
  type ContrastiveBatch,
  cachedInfoNce,
} from './embedding/cached-info-nce.js';
export {
  type ClassificationLossOptions,
  classificationLoss,
} from './embedding/classification-loss.js';
export {
  type OpenSequenceClassifier,
  openSequenceClassifier,
  parseSequenceClassifierConfig,
  sequenceClassifierConfigText,
  sequenceClassifierFiles,
} from './embedding/classifier-files.js';
export {
  classifyDocuments,
  type TextPairOptions,
  type TypedDocument,
  textPair,
  type YesNoIds,
  yesNoLogits,
  yesNoScores,
} from './embedding/classify-documents.js';
export type { Document, DocumentLengths } from './embedding/document-rows.js';
export {
  type EmbedDocumentsOptions,
  type EmbeddingArgs,
  type EmbeddingBody,
  type EmbeddingBodyOptions,
  type EmbeddingCallOptions,
  EmbeddingModel,
  type EmbeddingModelOptions,
  embedDocuments,
} from './embedding/embedding-model.js';
export type { EmbeddingGroup } from './embedding/gather-rows.js';
export { type ContrastiveOptions, type InfoNceOptions, infoNce } from './embedding/info-nce.js';
export {
  type CoSentOptions,
  coSentLoss,
  cosineSimilarityLoss,
  type EmbeddingTriple,
  marginMseLoss,
  type TripletOptions,
  tripletLoss,
} from './embedding/pair-losses.js';
export type { Pooling } from './embedding/pool.js';
export {
  readSentenceTransformers,
  type SentenceTransformersConfig,
  type SentenceTransformersFile,
  type Similarity,
  sentenceTransformersFiles,
} from './embedding/sentence-transformers.js';
export {
  type ClassifierBody,
  type ClassifyOptions,
  makeSequenceClassifier,
  type ProblemType,
  SequenceClassifier,
  type SequenceClassifierArgs,
  type SequenceClassifierConfig,
  type SequenceClassifierOptions,
} from './embedding/sequence-classifier.js';
export { Encoder } from './models/encoder.js';
export {
  ENCODER_DEFAULTS,
  type EncoderConfig,
  encoderParameterCount,
  resolveEncoderConfig,
} from './models/encoder-config.js';
export {
  EncoderAttention,
  EncoderBlock,
  type EncoderBlockPlaces,
  EncoderEmbeddings,
  EncoderIntermediate,
  EncoderOutput,
  type EncoderPlaces,
  EncoderPooler,
  type EncoderPooling,
} from './models/encoder-layers.js';
export type { EncoderArgs, EncoderOptions } from './models/encoder-options.js';
export { encoderConfigText, parseEncoderConfig } from './models/hf/encoder-config-file.js';
export { encoderFiles, type OpenEncoder, openEncoder } from './models/hf/encoder-files.js';
export {
  TokenModel,
  type TokenModelOptions,
  type TokenModelParts,
} from './models/token-model.js';
