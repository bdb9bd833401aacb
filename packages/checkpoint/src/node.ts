// The part of the package that needs Node: files.

export { type PieceDirectoryOptions, pieceDirectory } from './directory/piece-directory.js';
