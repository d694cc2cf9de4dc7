package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"strobe/internal/chat"
	"strobe/internal/engine"
	"strobe/internal/gguf"
	"strobe/internal/hub"
	"strobe/internal/model"
	"strobe/internal/platform"
	"strobe/internal/sample"
	"strobe/internal/server"
	"strobe/models"
)

type serveOptions struct {
	modelFlags
	sampleFlags
	models    string
	memory    byteSize
	idle      time.Duration
	alias     string
	host      string
	port      int
	parallel  int
	queue     int
	ubatch    int
	maxTokens int
	shift     bool
	keep      int

	keys    []string
	keyFile string
	cors    []string
	hosts   []string
	cert    string
	certKey string

	more    []string // further models of -m
	most    int      // models loaded at a time
	presets map[string]*preset
	// drafters were found for models of -m, by their names.
	drafters map[string]string

	settings     string
	tables       map[string]map[string]any // of single models, from the file
	given        sample.Defaults           // what flags say of sampling, the ones that were set
	templateFile string
	chatFlags
	props, pull bool

	upstreams    []string
	upstreamKeys []string
	otlp         string

	cacheDir  string
	slotDir   string
	cacheRAM  byteSize
	cacheDisk byteSize

	imageURLs bool
	mediaPath string
	mcp       []string
	mcpKeys   []string

	maxBody      byteSize
	maxStored    byteSize
	storedAge    time.Duration
	maxConns     int
	perAddress   int
	writeTimeout time.Duration
	drain        time.Duration
	logFormat    string
}

// keyVariable names the environment variable that mirrors --api-key.
const keyVariable = "STROBE_API_KEY"

func newServeCmd() *cobra.Command {
	opt := serveOptions{
		chatFlags: chatFlags{thinking: "auto"},
		cacheRAM:  autoSize,
		cacheDisk: 8 << 30,
		maxBody:   16 << 20,
		maxStored: 64 << 20,
	}
	cmd := &cobra.Command{
		Use:   "serve [MODEL | --models DIR]",
		Short: "Serve models over HTTP, with a web page",
		Long: `Serve answers HTTP requests: the OpenAI and Anthropic APIs, health and metrics, and a
web page for chatting at the server's own address.

With MODEL it serves one model, loaded at once, whatever model name requests give; without it, the one
that is built in. With several -m, or with --models for every GGUF file of a folder, it offers models under
their names, loads them when they are asked for and unloads the ones used least recently when memory runs short;
the name "any" stands for the one used last. Tables of the file of settings say more of single models.

With --upstream, models that other OpenAI-compatible servers run (vLLM, SGLang, llama.cpp, another Strobe)
appear beside its own, whatever protocol a client speaks. Requests that begin alike go to the same replica.

It listens on this machine only unless --host says otherwise. Its address goes to standard output, logs
to standard error. SIGINT or SIGTERM lets running requests finish for a while, then cancels them.

Every flag can also be set in the environment (STROBE_PORT for --port) and in the file --config names, or else in
the one "strobe config" names.`,
		Example: `  strobe serve
  strobe serve qwen3.5-4b
  strobe serve --models ~/models --models-memory 16GiB --port 9000
  strobe serve --upstream big=http://gpu1:8000 --upstream big=http://gpu2:8000
  strobe serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt --tls-cert c.pem --tls-key k.pem`,
		Args: opt.positionalModel(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if opt.tables, err = fillFlags(cmd, opt.settings); err != nil {
				return err
			}
			opt.given = givenSampling(cmd.Flags(), &opt.Params)
			return opt.run(cmd)
		},
	}
	opt.modelFlags.add(cmd)
	opt.sampleFlags.add(cmd, 0.8)
	f := cmd.Flags()
	f.Lookup("model").Value = &several{&opt.model, &opt.more}
	f.IntVar(&opt.ubatch, "ubatch-size", 0, ubatchHelp)
	defer group(f, serverFlagsOf)()
	f.StringVar(&opt.models, "models", "", "folder whose GGUF files are offered")
	f.Var(&opt.memory, "models-memory", "bytes the loaded models may take together (default: no limit)")
	f.IntVar(&opt.most, "models-max", 0, "models that are loaded at a time (default: as many as fit)")
	f.DurationVar(&opt.idle, "models-idle", 0,
		"unload a model that nobody used for so long; it is loaded again when asked for (default: never)")
	f.StringVar(&opt.alias, "alias", "", "name of the model in answers (default: its file's)")
	f.StringVar(&opt.host, "host", "127.0.0.1", "address to listen on; 0.0.0.0 is every one of the machine")
	f.IntVar(&opt.port, "port", 8080, "port to listen on; 0 takes a free one")
	f.IntVar(&opt.parallel, "parallel", 4, "requests that run together")
	f.IntVar(&opt.queue, "queue", 512, "requests that may wait for their turn; others are refused")
	f.IntVar(&opt.maxTokens, "max-tokens", 0,
		"most tokens of an answer when the request does not say (default: until the context is full)")
	f.BoolVar(&opt.shift, "context-shift", false,
		"let answers go on when the context is full: half of it is forgotten, and the rest is read again")
	f.IntVar(&opt.keep, "keep", 0, "with --context-shift, tokens of the beginning that are never forgotten; -1 is the whole prompt")
	f.StringArrayVar(&opt.keys, "api-key", nil, "key that requests must give; may be repeated (also "+keyVariable+")")
	f.StringVar(&opt.keyFile, "api-key-file", "", "file with keys, one per line")
	f.StringArrayVar(&opt.cors, "cors", nil, "origin whose web pages may use the server, * for any; may be repeated")
	f.StringArrayVar(
		&opt.hosts,
		"allow-host",
		nil,
		"further name this server is reached by, behind a proxy for instance; may be "+
			"repeated. Without it: addresses, localhost and this machine's name, or any name when --host is no local address "+
			"and there is a key",
	)
	f.StringVar(
		&opt.settings,
		"config",
		"",
		"file with settings for flags that are not given, in TOML: lines like port = 9000, and "+
			"tables like [defaults.\"NAME\"] for single models",
	)
	f.StringVar(&opt.templateFile, "chat-template-file", "", "file with a chat template to use instead of the model's")
	opt.chatFlags.add(f)
	f.BoolVar(&opt.props, "props", false, "let POST /props change what requests leave out")
	f.BoolVar(
		&opt.pull,
		"pull",
		false,
		"let clients download models from the Hugging Face hub (POST /api/pull), with --models",
	)
	f.StringVar(&opt.cert, "tls-cert", "", "file with the TLS certificate chain (PEM)")
	f.StringVar(&opt.certKey, "tls-key", "", "file with its key (PEM)")
	f.StringArrayVar(
		&opt.upstreams,
		"upstream",
		nil,
		"model of another OpenAI-compatible server, NAME=URL or NAME=URL#ITS-NAME; may be repeated, "+
			"several of one name are replicas. Without -m and --models, no other model is offered",
	)
	f.StringArrayVar(
		&opt.upstreamKeys,
		"upstream-key",
		nil,
		"key for an upstream, NAME=KEY or NAME=@FILE; may be repeated",
	)
	f.StringVar(&opt.cacheDir, "cache-dir", "", "folder that keeps the prefix cache over restarts (default: none)")
	f.Var(&opt.cacheRAM, "cache-ram", "bytes of memory for the prefix cache; 0 turns it off (default: half of what is free on the GPU "+
		"once the model is loaded, or a quarter of the free memory on the CPU)")
	f.Var(&opt.cacheDisk, "cache-disk", "bytes that --cache-dir and --slot-save-path may take each")
	f.StringVar(&opt.slotDir, "slot-save-path", "",
		"folder for the files of POST /slots/ID?action=save and restore (default: none)")
	f.BoolVar(&opt.imageURLs, "image-urls", false,
		"fetch images that requests name by http and https URLs, from public addresses only")
	f.StringVar(&opt.mediaPath, "media-path", "",
		"folder below which requests may name images by file URLs (default: none)")
	f.StringArrayVar(&opt.mcp, "mcp", nil,
		"MCP server whose tools the web page may use, NAME=URL; may be repeated. The page asks before every call")
	f.StringArrayVar(&opt.mcpKeys, "mcp-key", nil, "key for an MCP server, NAME=KEY or NAME=@FILE; may be repeated")
	f.Var(&opt.maxBody, "max-body", "bytes of the largest request")
	f.Var(&opt.maxStored, "responses-memory", "bytes of responses kept for requests that refer to them; 0 keeps none")
	f.DurationVar(&opt.storedAge, "responses-age", 24*time.Hour, "time they are kept after their last use")
	f.IntVar(&opt.maxConns, "max-conns", 1024, "connections at a time; idle ones make room, others wait")
	f.IntVar(&opt.perAddress, "max-conns-per-address", 0,
		"connections of one address at a time, -1 for no limit (default: three quarters, no limit for this machine)")
	f.DurationVar(&opt.writeTimeout, "write-timeout", 30*time.Second,
		"time a client may take to accept a piece of its answer")
	f.DurationVar(&opt.drain, "shutdown-timeout", 10*time.Second,
		"time running requests have to finish when the server is told to stop")
	f.StringVar(&opt.otlp, "otlp", "",
		"address of an OpenTelemetry collector that gets traces, such as http://localhost:4318 (also "+
			"OTEL_EXPORTER_OTLP_ENDPOINT; default: none)")
	f.StringVar(&opt.logFormat, "log-format", "text", "format of the log: text or json")
	return cmd
}

func (o *serveOptions) run(cmd *cobra.Command) error {
	log, err := o.logger(cmd)
	if err != nil {
		return err
	}
	cfg, err := o.config(log)
	if err != nil {
		return err
	}
	if cfg.Upstreams, err = o.fleet(log); err != nil {
		return err
	}
	if cfg.Upstreams != nil {
		defer cfg.Upstreams.Close()
	}
	traces, err := o.traces(cmd.Context(), log)
	if err != nil {
		return err
	}
	if traces != nil {
		cfg.Traces = traces
		defer func() {
			end, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), 5*time.Second) // for a slow collector
			defer cancel()
			_ = traces.Shutdown(end)
		}()
	}
	if err := o.look(log); err != nil {
		return err
	}
	ln, err := listen(o.host, o.port)
	if err != nil {
		return err
	}
	allowEnding(cmd.Context(), 2*o.drain) // the requests, then the models
	s := server.New(cfg)
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()

	scheme := "http"
	if cfg.TLS != nil {
		scheme = "https"
	}
	urls := addresses(scheme, ln)
	fmt.Fprintln(cmd.OutOrStdout(), strings.Join(urls, "\n"))
	log.Info("listening", "url", strings.Join(urls, " "), "version", buildVersion())
	stopping := sync.OnceFunc(func() {
		log.Info("stopping; a second signal ends it at once", "waits for", "running requests", "at most", o.drain)
	})
	defer context.AfterFunc(cmd.Context(), stopping)() // no log line after the command has returned
	defer func() {
		if cmd.Context().Err() != nil {
			stopping() // also when all ended before it could be said
		}
	}()
	if len(cfg.Keys) == 0 && !isLoopback(o.host) {
		log.Warn("everyone who reaches this address may use the server; --api-key would change that")
	}

	type offered struct {
		close func(context.Context) error
		err   error
	}
	loaded := make(chan offered, 1)
	go func() {
		c, err := o.offer(ctx, s, log)
		loaded <- offered{c, err}
	}()
	var models offered
	select {
	case models = <-loaded:
	case err := <-served:
		// Told to stop while a file is loaded or a folder is looked at. Nothing can interrupt that, so nobody
		// waits for it.
		go func() {
			if m := <-loaded; m.err == nil {
				m.close(ctx)
			}
		}()
		return err
	}
	if models.err != nil {
		stop()
		<-served
		return models.err
	}
	err = <-served
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.drain)
	defer cancel()
	if cerr := models.close(end); err == nil {
		err = cerr
	}
	return err
}

// look refuses models that are not there, before anything says that the server is.
func (o *serveOptions) look(log *slog.Logger) error {
	if o.models != "" {
		st, err := os.Stat(o.models)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("--models %s: there is no such folder", o.models)
		case err != nil:
			return fmt.Errorf("--models: %w", err)
		case !st.IsDir():
			return usagef("--models %s: is a file; serve it with -m %s, or give a folder", o.models, o.models)
		}
		if len(ggufFiles(o.models)) == 0 {
			log.Warn("there is no GGUF file in the folder yet; those that come later are found", "folder", o.models)
		}
	}
	if err := cacheFolder(); err != nil {
		log.Warn("there is no folder to keep converted drafters and compiled kernels in; they are made anew at every start. "+
			"XDG_CACHE_HOME names one", "error", err)
	}
	drafters := append([]string{o.drafter}, o.moreDrafters...)
	for i, name := range append(drafters, o.allModels()...) {
		if name == "" || name == "none" {
			continue
		}
		of, err := lookUp(name)
		if err != nil {
			return err
		}
		if of.file == "" {
			continue // fetched or converted first
		}
		f, err := gguf.Open(of.file)
		if err != nil {
			return err
		}
		why := ""
		if i >= len(drafters) {
			why = model.WhyNot(f)
		}
		f.Close()
		if why != "" {
			return fmt.Errorf("%s: the model cannot run: %s", of.file, why)
		}
	}
	return nil
}

// checkTables refuses a table of settings for a model that is not offered: it would do nothing. In the user's general
// file, which serves several purposes, it is noted.
func (o *serveOptions) checkTables(log *slog.Logger, models []engine.ModelInfo) error {
	if o.pull {
		return nil // it may come
	}
	var names []string
	for _, m := range models {
		names = append(names, m.Name)
	}
	for _, u := range o.upstreams {
		name, _, _ := strings.Cut(u, "=")
		names = append(names, name)
	}
	for _, table := range slices.Sorted(maps.Keys(o.tables)) {
		if slices.Contains(names, table) {
			continue
		}
		err := fmt.Errorf("%s.%q: there is no model of that name; offered are %s", modelTables, table, strings.Join(names, ", "))
		if o.settings != "" || os.Getenv(configVariable) != "" {
			return err
		}
		log.Warn("settings that do nothing", "error", err)
	}
	return nil
}

// offer loads what there is to load and gives it to the server. The function it returns unloads.
func (o *serveOptions) offer(ctx context.Context, s *server.Server,
	log *slog.Logger) (closeModels func(context.Context) error, err error) {
	ecfg := engine.Config{
		Parallel: o.parallel, Queue: o.queue, Context: o.ctx, CacheBytes: int64(o.cacheRAM), CacheDir: o.cacheDir,
		CacheDiskBytes: int64(o.cacheDisk), SlotDir: o.slotDir, Log: log, Chunk: o.ubatch,
	}
	o.prefill.log = func(line string) { log.Info(line) }
	// In the engine zero means the default, here it means none.
	switch o.cacheRAM {
	case 0:
		ecfg.CacheBytes = -1
	case autoSize:
		ecfg.CacheBytes = 0
	}
	if o.queue == 0 {
		ecfg.Queue = -1
	}
	if o.models != "" || o.model != "" || o.many() || len(o.upstreams) > 0 {
		pool := engine.PoolConfig{Dir: o.models, Engine: ecfg, MemoryBytes: int64(o.memory), Idle: o.idle, Log: log,
			MaxModels: o.most}
		return o.offerPool(ctx, s, pool)
	}
	for name, p := range o.presets {
		if p.loads {
			return nil, fmt.Errorf("%s.%q: the built-in model is loaded as the flags say; give a model with -m", modelTables, name)
		}
	}
	start := time.Now()
	m, err := o.load()
	if err != nil {
		return nil, err
	}
	opt, err := o.loadOptions()
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if opt.Template != "" {
		m.Template = opt.Template
	}
	name := o.alias
	if name == "" {
		name = strings.TrimSuffix(filepath.Base(m.Path), ".gguf")
	}
	if err := o.checkTables(log, []engine.ModelInfo{{Name: name}}); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	e := engine.New(m, ecfg)
	s.SetModels(server.Single(name, e))
	log.Info("model loaded", "model", name, "seconds", time.Since(start).Seconds(), "what", m.Summary())
	return e.Close, nil
}

var newPool = engine.NewPool // another one in tests

// offerPool offers the files of a folder, or a single one, which is loaded at once. A single file is a pool, too:
// it is loaded again when it was changed or its engine stopped.
func (o *serveOptions) offerPool(ctx context.Context, s *server.Server,
	cfg engine.PoolConfig) (closeModels func(context.Context) error, err error) {
	single := o.model != "" && !o.many()
	switch {
	case single:
		if err := o.find(); err != nil {
			return nil, err
		}
		cfg.Files, cfg.Alias = []string{o.model}, o.alias
	case o.many():
		if cfg.Named, err = o.namedModels(); err != nil {
			return nil, err
		}
	}
	if cfg.Load, err = o.loadOptions(); err != nil {
		return nil, err
	}
	say := func(line string) { cfg.Log.Info("loading", "where", line) }
	cfg.Load.Say = say
	cfg.Of = func(name string, load *engine.Options, run *engine.Config) {
		if p := o.presets[name]; p != nil && p.loads {
			*load, run.Context = p.options, p.ctx
			load.Say = say
		}
		load.Drafter = cmp.Or(load.Drafter, o.drafters[name])
	}
	cfg.Aliases = map[string]string{} // filled below, before anyone asks
	p, err := newPool(cfg)
	if err != nil {
		return nil, err
	}
	if err = o.checkTables(cfg.Log, p.Models()); err == nil {
		var aliases map[string]string
		aliases, err = o.applyPresets(p.Models())
		maps.Copy(cfg.Aliases, aliases)
	}
	if err != nil {
		p.Close(ctx)
		return nil, err
	}
	only := ""
	if single {
		only = p.Models()[0].Name
		if err := o.first(ctx, p, only); err != nil {
			p.Close(ctx)
			return nil, err
		}
	}
	s.SetModels(server.Pool(p, only))
	if o.pull && only == "" {
		s.SetPull(puller(p))
	}
	return p.Close, nil
}

// puller downloads models from the hub into its cache and offers them under the name they were asked for by.
func puller(p *engine.Pool) server.PullFunc {
	return func(ctx context.Context, name string, report func(file string, done, total int64)) error {
		ref := name
		for _, host := range []string{"https://", "hf.co/", "huggingface.co/"} { // as Ollama's clients write them
			ref = strings.TrimPrefix(ref, host)
		}
		if _, err := hub.ParseRef(ref); err != nil {
			return &chat.FieldError{Field: "model", Msg: err.Error()}
		}
		c, err := hub.FromEnv()
		if err != nil {
			return err
		}
		plan, err := c.Resolve(ctx, ref)
		if err != nil {
			return err
		}
		path, err := c.Pull(ctx, plan, func(s hub.Progress) { report(s.File, s.Done, s.Total) })
		if err != nil {
			return err
		}
		return p.Add(ctx, name, path)
	}
}

// first loads the only model of a pool.
func (o *serveOptions) first(ctx context.Context, p *engine.Pool, name string) error {
	l, err := p.Acquire(ctx, name)
	if load := (*engine.LoadError)(nil); errors.As(err, &load) {
		return load.Err
	}
	if err != nil {
		return err
	}
	defer l.Release()
	return o.checkDrafter(l.Engine.Model())
}

// loadOptions is how the flags want models to be loaded.
func (o *serveOptions) loadOptions() (engine.Options, error) {
	if o.models != "" {
		switch {
		case o.model != "":
			return engine.Options{}, usagef("give a model with -m or a folder with --models, not both")
		case o.drafter != "" && o.drafter != "none":
			return engine.Options{}, usagef("--models finds the drafter beside each model; -d belongs to -m")
		case o.alias != "":
			return engine.Options{}, usagef("--alias names a single model; --models takes the names of the files")
		}
	}
	if o.many() {
		switch {
		case o.drafter != "" && o.drafter != "none":
			return engine.Options{}, usagef("-d belongs to one model; with several, their tables [%s.\"NAME\"] have a drafter", modelTables)
		case o.alias != "":
			return engine.Options{}, usagef("--alias names a single model; with several, their tables [%s.\"NAME\"] have an alias", modelTables)
		case o.templateFile != "":
			return engine.Options{}, usagef("--chat-template-file belongs to a single model; with several, their tables [%s.\"NAME\"] "+
				"have one", modelTables)
		}
	}
	opt, err := o.options()
	if err != nil || o.templateFile == "" {
		return opt, err
	}
	if o.models != "" {
		return opt, usagef("--chat-template-file belongs to a single model; --models takes the templates of the files")
	}
	opt.Template, err = readTemplate(o.templateFile)
	return opt, err
}

// readTemplate reads a chat template from a file.
func readTemplate(file string) (string, error) {
	b, err := platform.ReadFile(file, platform.MaxText)
	if err != nil {
		return "", err
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return "", fmt.Errorf("%s: there is no template in it", file)
	}
	_, err = chat.ParseTemplate(file, string(b))
	return string(b), err
}

// config checks the flags of the server itself.
func (o *serveOptions) config(log *slog.Logger) (cfg server.Config, err error) {
	cfg = server.Config{
		Version: buildVersion(), Log: log, Params: o.Params, MaxTokens: o.maxTokens, CORS: o.cors,
		MaxBody: int64(o.maxBody), MaxConns: o.maxConns, MaxPerAddress: o.perAddress,
		WriteTimeout: o.writeTimeout, Drain: o.drain,
		MaxStored: int64(o.maxStored), StoredAge: o.storedAge, LocalOrigins: isLoopback(o.host),
		Sampling: o.given, ChangeProps: o.props, FetchImages: o.imageURLs, MediaPath: o.mediaPath,
		NoFill: []string{models.Name},
	}
	if o.slotDir != "" {
		if st, err := os.Stat(o.slotDir); err != nil || !st.IsDir() {
			return cfg, usagef("--slot-save-path %s: is not a folder", o.slotDir)
		}
	}
	if o.mediaPath != "" {
		if st, err := os.Stat(o.mediaPath); err != nil || !st.IsDir() {
			return cfg, usagef("--media-path %s: is not a folder", o.mediaPath)
		}
	}
	if o.shift {
		cfg.Shift = &engine.Shift{Keep: o.keep}
	}
	if o.keep < -1 || o.keep != 0 && !o.shift {
		return cfg, usagef("--keep %d: want --context-shift with a number of tokens, or -1 for the whole prompt", o.keep)
	}
	if o.maxStored == 0 { // there zero means the default
		cfg.MaxStored = -1
	}
	if o.seed >= 0 {
		n := uint64(o.seed)
		cfg.Seed = &n
	}
	if err := o.check(); err != nil {
		return cfg, err
	}
	if cfg.Spec, err = o.spec(); err != nil {
		return cfg, err
	}
	if o.port < 0 || o.port > math.MaxUint16 {
		return cfg, usagef("--port %d: want 0 to %d", o.port, math.MaxUint16)
	}
	if o.parallel < 1 {
		return cfg, usagef("--parallel %d: want at least 1", o.parallel)
	}
	if o.ubatch < 0 {
		return cfg, usagef("--ubatch-size %d: want 0 or more", o.ubatch)
	}
	if o.queue < 0 {
		return cfg, usagef("--queue %d: want at least 0", o.queue)
	}
	if o.maxTokens < 0 {
		return cfg, usagef("--max-tokens %d: want at least 0", o.maxTokens)
	}
	if o.most < 0 {
		return cfg, usagef("--models-max %d: want at least 0", o.most)
	}
	if cfg.Chat, err = o.chatFlags.defaults(); err != nil {
		return cfg, err
	}
	if cfg.PerModel, err = o.modelDefaults(); err != nil {
		return cfg, err
	}
	if _, err := o.loadOptions(); err != nil {
		return cfg, err
	}
	if cfg.Keys, err = o.allKeys(); err != nil {
		return cfg, err
	}
	if cfg.MCP, err = o.mcpServers(len(cfg.Keys) > 0); err != nil {
		return cfg, err
	}
	cfg.Hosts = o.hostNames(len(cfg.Keys) > 0)
	if (o.cert == "") != (o.certKey == "") {
		return cfg, usagef("--tls-cert and --tls-key belong together")
	}
	if o.cert != "" {
		pair, err := o.certificate()
		if err != nil {
			return cfg, err
		}
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"},
			MinVersion: tls.VersionTLS12}
	}
	return cfg, nil
}

// hostNames are the names that requests may call the server by; nil means any. Addresses always work. Without such a
// list a web page could use the server from a browser that reaches it, through a name of the page's own that it made
// point here. With a key it could not; a server on the network that wants one needs no list.
func (o *serveOptions) hostNames(keys bool) []string {
	names := []string{"localhost", strings.ToLower(o.host)}
	switch {
	case len(o.hosts) > 0:
		for _, h := range o.hosts {
			names = append(names, strings.ToLower(h))
		}
	case isLoopback(o.host):
	case keys:
		return nil
	default:
		if name, err := os.Hostname(); err == nil {
			name = strings.ToLower(name)
			short, _, _ := strings.Cut(name, ".")
			names = append(names, name, short, short+".local")
		}
	}
	return names
}

// allKeys gathers the keys of the flags, the file and the environment.
func (o *serveOptions) allKeys() ([]string, error) {
	keys := append([]string{}, o.keys...)
	if o.keyFile != "" {
		more, err := readKeys(o.keyFile)
		if err != nil {
			return nil, err
		}
		keys = append(keys, more...)
	}
	if k := os.Getenv(keyVariable); k != "" {
		keys = append(keys, k)
	}
	for _, k := range keys {
		if strings.TrimSpace(k) == "" {
			return nil, usagef("--api-key: a key must not be empty")
		}
	}
	return keys, nil
}

// readKeys reads a file with a key on each line. Lines that begin with # are comments.
func readKeys(path string) (keys []string, err error) {
	b, err := platform.ReadFile(path, platform.MaxText)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if k := strings.TrimSpace(line); k != "" && !strings.HasPrefix(k, "#") {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 { // an open server is not what was meant
		return nil, fmt.Errorf("%s: there is no key in it", path)
	}
	return keys, nil
}

// certificate reads the files of --tls-cert and --tls-key.
func (o *serveOptions) certificate() (pair tls.Certificate, err error) {
	cert, err := platform.ReadFile(o.cert, platform.MaxText)
	if err != nil {
		return pair, err
	}
	key, err := platform.ReadFile(o.certKey, platform.MaxText)
	if err != nil {
		return pair, err
	}
	if pair, err = tls.X509KeyPair(cert, key); err != nil {
		return pair, fmt.Errorf("%s with %s: %w", o.cert, o.certKey, err)
	}
	return pair, nil
}

func (o *serveOptions) logger(cmd *cobra.Command) (*slog.Logger, error) {
	h := &slog.HandlerOptions{Level: slog.LevelInfo}
	if quiet, _ := cmd.Flags().GetBool("quiet"); quiet {
		h.Level = slog.LevelWarn
	}
	var w io.Writer = cmd.ErrOrStderr()
	switch o.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, h)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, h)), nil
	}
	return nil, usagef("--log-format %q: want text or json", o.logFormat)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// byteSize is a flag for a number of bytes with an optional unit.
type byteSize int64

func (b *byteSize) Type() string { return "bytes" }

// autoSize is a size that the program chooses.
const autoSize byteSize = -1

func (b *byteSize) String() string {
	if *b == autoSize {
		return ""
	}
	n := int64(*b)
	for _, u := range []struct {
		shift uint
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n != 0 && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

func (b *byteSize) Set(s string) error {
	digits := strings.TrimRight(s, "KMGTiBkmgtb ")
	unit := strings.ToLower(strings.TrimSpace(s[len(digits):]))
	scale := map[string]float64{
		"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "kb": 1e3, "m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
		"g": 1 << 30, "gib": 1 << 30, "gb": 1e9, "t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
	}[unit]
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || scale == 0 || !(v >= 0 && v*scale < 1<<62) {
		return fmt.Errorf("%q is not a size; want for instance 4GiB or 500MB", s)
	}
	*b = byteSize(v * scale)
	return nil
}
