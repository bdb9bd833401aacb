export * from './elastic-everywhere.js';
export { type JoinElasticOptions, joinElastic } from './transports/ws/elastic/join-elastic.js';
export {
  type ElasticServer,
  type ServeElasticOptions,
  serveElastic,
} from './transports/ws/elastic/serve-elastic.js';
