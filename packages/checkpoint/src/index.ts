// Saves: tensors in pieces with a checksum each, written by any number of processes and read by any
// other number.

export { crc32 } from './crc32.js';
export * from './errors.js';
export { firstOf } from './first-of.js';
export {
  type HeldFile,
  type HeldPiece,
  labelOf,
  type TensorId,
  type TensorKind,
  type TensorSpec,
  tensorKey,
  type WantedPiece,
} from './held-piece.js';
export { type FitOptions, loadSave, openSave, Save } from './open-save.js';
export type { PieceReader, PieceSink, PieceStore } from './piece-store.js';
export { type PiecesInOptions, piecesIn } from './pieces-in.js';
export { requireJson } from './require-json.js';
export {
  INDEX_FILE,
  PIECE_BYTES,
  type SavedOptimizer,
  type SavedPart,
  type SavedPiece,
  type SavedTensor,
  type SaveIndex,
} from './save-index.js';
export {
  beginSave,
  type SaveOverRanksOptions,
  type SaveRecord,
  type SaveSession,
  saveOverRanks,
} from './save-session.js';
export { type WritePartOptions, writePart } from './write-part.js';
export { type SaveContents, writeSave } from './write-save.js';
