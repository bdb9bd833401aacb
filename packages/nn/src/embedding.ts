// Embedders: transformers whose rows become one row a document, and the losses that train them.

export {
  type CachedInfoNceOptions,
  type ContrastiveBatch,
  cachedInfoNce,
} from './embedding/cached-info-nce.js';
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
