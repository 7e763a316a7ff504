// `etactl stats` as text: tables, bars, and one text over the other.
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

#include "service/etactl/view/stats_text.h"
#include "service/etactl/view/terminal.h"

namespace eta::ctl {
namespace {

v1::Stats StatsOf(const std::string& text) {
  v1::Stats stats;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &stats)) << text;
  return stats;
}

constexpr char kServer[] = R"pb(
  uptime { seconds: 3723 }
  server {
    state: SERVER_STATE_SERVING
    version: "1.2.3"
    model: "tiny"
    model_fingerprint: "0123456789abcdef"
    backend: "cpu, 2 threads"
    kv {
      layers: 2
      query_heads: 4
      kv_heads: 2
      block_size: 16
      blocks: 64
      kv_dtype: "float16"
      index_dtype: "int8"
      index: "outlier"
    }
  }
)pb";

constexpr char kLoad[] = R"pb(
  load {
    running: 3
    waiting: 1
    waiting_tokens: 40
    steps: 1000
    output_tokens: 2500
    prompt_tokens: 900
    cached_tokens: 64
    steps_per_second: 12.34
    tokens_per_second: 37.0
    paused: 2
    drafts { drafted: 600 accepted: 450 steps_saved: 430 }
    devices {
      running: 3
      waiting: 1
      blocks_used: 16
      blocks_cached: 16
      blocks_free: 32
      paused: 2
      predicted_wait { nanos: 250000000 }
      prefill_tokens_per_second: 1200.0
    }
  }
  latencies {
    kind: LATENCY_KIND_FIRST_TOKEN
    window: LATENCY_WINDOW_ONE_MINUTE
    count: 12
    p50 { nanos: 8400000 }
    p95 { nanos: 31200000 }
    p99 { seconds: 1 nanos: 250000000 }
  }
  latencies { kind: LATENCY_KIND_QUEUE window: LATENCY_WINDOW_TEN_MINUTES }
)pb";

constexpr char kAttention[] = R"pb(
  attention {
    mode: ATTENTION_MODE_DYNAMIC
    tenant: "acme"
    totals {
      decode_steps: 10
      head_density: 0.25
      union_density: 0.5
      kv_bytes_read: 5000
      kv_bytes_dense: 10000
      index_bytes_read: 700
      keys_attended: 250
      keys_eligible: 1000
      keys_read: 250
      keys_cached: 500
    }
    layers { keys_attended: 10 keys_attended: 30 keys_eligible: 100 keys_read: 50 }
    layers { keys_attended: 0 keys_attended: 100 keys_eligible: 100 keys_read: 100 }
  }
  attention {
    mode: ATTENTION_MODE_PROFILE
    profile: "legal"
    version: 3
    tenant: "acme"
    totals { decode_steps: 4 head_density: 0.5 union_density: 0.75 }
    recent { decode_steps: 3 head_density: 0.3 union_density: 0.5 context: 900 }
    recent_as_calibrated { decode_steps: 2 head_density: 0.21 union_density: 0.36 context: 1500 }
    calibrated_context: 2048
    calibrated_head_density: 0.2
    calibrated_union_density: 0.4
    head_density_drift: 0.05
    union_density_drift: -0.1
    drift_context: DRIFT_CONTEXT_CALIBRATED
  }
  attention {
    mode: ATTENTION_MODE_PROFILE
    profile: "legal"
    version: 4
    tenant: "acme"
    totals { decode_steps: 5 head_density: 0.5 union_density: 0.75 }
    calibrated_context: 2048
    calibrated_head_density: 0.2
    calibrated_union_density: 0.4
  }
)pb";

TEST(EtactlStats, SaysWhatItIsHowBusyAndHowFast) {
  const std::string text = DescribeStats(StatsOf(std::string(kServer) + kLoad), nullptr);
  EXPECT_EQ(text,
            "tiny: serving, up 1 h 02 min; eta-server 1.2.3, cpu, 2 threads\n"
            "model 0123456789ab, 2 layers, 4 heads over 2 KV heads; KV cache of 64 blocks of 16 "
            "tokens in float16, outlier records in int8\n"
            "\n"
            "running 3, waiting 1 (40 prompt tokens); 37.0 tokens/s, 12.3 steps/s in the last "
            "minute\n"
            "since the start: 1000 steps, 900 prompt tokens (64 cached), 2500 generated, 0 "
            "preemptions\n"
            "drafts: 450 of 600 drafted tokens right, 430 steps saved\n"
            "paused until their clients have read: 2\n"
            "\n"
            "device  KV blocks in use          used  cached  free  running  waiting  "
            "predicted wait  prompt tokens/s  a slot every\n"
            "0       ######..................    16      16    32        3        1  "
            "      250.0 ms             1200             -\n"
            "\n"
            "nothing was decoded yet\n"
            "\n"
            "latency      of the last  count      p50      p95     p99\n"
            "first token  1 min           12  8.40 ms  31.2 ms  1.25 s\n"
            "queue        10 min           0        -        -       -\n");
}

TEST(EtactlStats, CountsConnections) {
  const std::string text = DescribeStats(
      StatsOf("connections { open: 3 max: 4096 accepted: 70 refused_full: 5 refused_peer: 2 }"),
      nullptr);
  EXPECT_NE(text.find("\nconnections: 3 open of 4096, 70 since the start, 7 refused\n"),
            std::string::npos)
      << text;
}

TEST(EtactlStats, SaysHowSparseItIsByProfileAndLayer) {
  const std::string text = DescribeStats(StatsOf(kAttention), nullptr);
  EXPECT_NE(text.find("density with     tenant  steps   head  union  KV read  of full  index\n"
                      "dynamic          acme       10  0.250  0.500   5.0 kB   50.0 %  700 B\n"
                      "profile legal@3  acme        4  0.500  0.750      0 B        -    0 B\n"
                      "profile legal@4  acme        5  0.500  0.750      0 B        -    0 B\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("dynamic of acme by layer, since the start\n"
                      "layer  head density                          its heads  union density\n"
                      "    0  #####...................  0.200  0.100 to 0.300  "
                      "############............  0.500\n"
                      "    1  ############............  0.500  0.000 to 1.000  "
                      "########################  1.000\n"),
            std::string::npos)
      << text;
}

TEST(EtactlStats, SaysWhatLayersSee) {
  const auto heading = [](int layers, int full) {
    v1::Stats stats;
    v1::KvGeometry& kv = *stats.mutable_server()->mutable_kv();
    kv.set_layers(layers);
    kv.set_full_layers(full);
    kv.set_window(176);
    return DescribeStats(stats, nullptr);
  };
  for (const auto& [layers, full, words] :
       {std::tuple(6, 2, "\n2 layers see the whole context, the others 176 tokens\n"),
        std::tuple(6, 1, "\n1 layer sees the whole context, the others 176 tokens\n"),
        std::tuple(2, 1, "\n1 layer sees the whole context, the other one 176 tokens\n"),
        std::tuple(6, 0, "\nall layers see 176 tokens\n")}) {
    EXPECT_NE(heading(layers, full).find(words), std::string::npos) << heading(layers, full);
  }
  v1::Stats stats = StatsOf(kAttention);
  v1::KvGeometry& kv = *stats.mutable_server()->mutable_kv();
  kv.set_full_layers(2);
  kv.set_window(176);
  stats.mutable_attention(0)->add_layers();
  const std::string text = DescribeStats(stats, nullptr);
  EXPECT_NE(text.find("    2                                   sees 176 tokens\n"),
            std::string::npos)
      << text;
}

TEST(EtactlStats, QualityStandsBesideItsPromise) {
  v1::Stats stats = StatsOf(kAttention);
  EXPECT_EQ(DescribeStats(stats, nullptr).find("quality"), std::string::npos)
      << "nothing was measured";
  v1::AttentionSeries& series = *stats.mutable_attention(1);
  series.mutable_totals()->set_shadow_row_layers(40);
  series.mutable_totals()->set_mass_kept(0.912);
  series.mutable_totals()->set_output_error(0.25);
  series.mutable_recent()->set_shadow_row_layers(8);
  series.mutable_recent()->set_mass_kept(0.8);
  series.set_calibrated_mass(0.97);
  series.set_fallbacks(3);
  series.mutable_totals()->set_fallback_steps(200);
  EXPECT_NE(
      DescribeStats(stats, nullptr)
          .find("quality          tenant  row-layers  mass kept  output error  mass, last 10 min  "
                "calibrated  gone full  full steps\n"
                "profile legal@3  acme            40      0.912         0.250              0.800  "
                "     0.970          3         200\n"),
      std::string::npos)
      << DescribeStats(stats, nullptr);
}

TEST(EtactlStats, DriftIsOfTheLastTenMinutesAndSaysAtWhichContexts) {
  v1::Stats stats = StatsOf(kAttention);
  EXPECT_NE(DescribeStats(stats, nullptr)
                .find("drift, last 10 min  tenant  steps  mean context  calibrated at   head  "
                      "calibrated   drift  union  calibrated    drift\n"
                      "profile legal@3     acme        2          1500      1025-2048  0.210  "
                      "     0.200  +5.0 %  0.360       0.400  -10.0 %\n"
                      "profile legal@4     acme        0             -      1025-2048      -  "
                      "     0.200       -      -       0.400        -\n"
                      "\n"),
            std::string::npos)
      << DescribeStats(stats, nullptr);
  v1::AttentionSeries& longer = *stats.mutable_attention(1);
  *longer.mutable_recent() = longer.recent_as_calibrated();
  longer.mutable_recent()->set_context(9120.0);
  longer.clear_recent_as_calibrated();
  longer.set_drift_context(v1::DRIFT_CONTEXT_OTHER);
  const std::string text = DescribeStats(stats, nullptr);
  EXPECT_NE(text.find("profile legal@3     acme        2        9120 *      1025-2048  0.210"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\n* another length than calibration measured; "), std::string::npos) << text;
}

TEST(EtactlStats, WhileItWatchesDensitiesOfTheLastIntervalStandBeside) {
  const v1::Stats before = StatsOf(kAttention);
  v1::Stats now = before;
  v1::AttentionStats& totals = *now.mutable_attention(0)->mutable_totals();
  totals.set_decode_steps(10 + 2);
  totals.set_keys_attended(250 + 90);
  totals.set_keys_eligible(1000 + 100);
  totals.set_keys_read(250 + 1);
  totals.set_keys_cached(500 + 100);
  v1::LayerAttention& layer = *now.mutable_attention(0)->mutable_layers(0);
  layer.set_keys_attended(0, 10 + 4);
  layer.set_keys_attended(1, 30 + 8);
  layer.set_keys_eligible(100 + 10);
  layer.set_keys_read(0, 50 + 10);
  const std::string text = DescribeStats(now, &before);
  EXPECT_NE(text.find("dynamic          acme       12     0.900      0.010  0.250"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("profile legal@3  acme        4         -          -  0.500"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("    0  ##############..........  0.600  0.400 to 0.800  "
                      "########################  1.000\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("    1  ........................      -               -"), std::string::npos)
      << text;
}

TEST(EtactlStats, LayersOfAnIdleIntervalAreThoseSinceTheStart) {
  const v1::Stats stats = StatsOf(kAttention);
  EXPECT_NE(DescribeStats(stats, &stats).find("dynamic of acme by layer, since the start\n"),
            std::string::npos);
}

TEST(EtactlStats, ListsTenantsProfilesAndCalibrations) {
  const std::string text = DescribeStats(
      StatsOf(R"pb(
        tenants {
          tenant: "acme"
          calls { method: "Generate" code: "OK" calls: 7 }
          calls { method: "Generate" code: "CANCELLED" calls: 2 }
          calls { method: "GetProfile" code: "OK" calls: 1 }
          output_tokens: 50
          attention {
            decode_steps: 40
            head_density: 0.1
            union_density: 0.3
            kv_bytes_read: 1000
            kv_bytes_dense: 4000
          }
        }
        profiles { tenant: "acme" name: "legal" version: 3 head_density: 0.2 union_density: 0.4 }
        profiles_loaded: 5
        calibrations {
          tenant: "acme"
          profile: "code"
          elapsed { seconds: 75 }
        }
      )pb"),
      nullptr);
  EXPECT_NE(text.find("acme       10       2              0       0         50         0.100"
                      "          0.300       3.0 kB\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("legal@3"), std::string::npos);
  EXPECT_NE(text.find("and 4 more\n"), std::string::npos);
  EXPECT_NE(text.find("code            acme    1 min 15 s  beginning\n"), std::string::npos)
      << text;
}

TEST(EtactlStats, SaysWhatOfItsLimitsATenantUsesAndWhyCallsWereRefused) {
  const std::string text = DescribeStats(
      StatsOf(R"pb(
        tenants {
          tenant: "acme"
          reasons { method: "Generate" reason: "DEADLINE_TOO_SHORT" calls: 2 }
          reasons { method: "GetProfile" reason: "QUEUE_FULL" calls: 40 }
        }
        uses {
          tenant: "acme"
          running: 3
          paused: 1
          waiting: 2
          profile_versions: 10
          profile_bytes: 5000
          stored_versions: 4
          stored_bytes: 2000
        }
        store_calls { waiting: 5 max_waiting: 128 lookups_waiting: 6 max_lookups_waiting: 1024 }
        tokenizer_calls { waiting: 4 max_waiting: 512 }
        default_profile { used: 90 absent: 8 unfit: 7 unavailable: 6 tenants: 1 }
      )pb"),
      nullptr);
  for (const char* part : {"QUEUE_FULL          GetProfile  acme       40\n"
                           "DEADLINE_TOO_SHORT  Generate    acme        2\n",
                           "3, 1, 2", "4 of 10", "2.0 kB of 5.0 kB",
                           "calls that wait for the profile store: 5 of 128\n",
                           "requests whose text waits to be made tokens: 4 of 512\n",
                           "requests that wait for their profile: 6 of 1024\n",
                           "default profile: 90 calls used it; the tenant had none in 8, it was of "
                           "another model in 7, the store could not give it in 6\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(EtactlStats, NamesCannotCommandTheTerminal) {
  v1::Stats stats = StatsOf(kServer);
  stats.mutable_server()->set_model("\033[2Jevil");
  stats.set_tenant("\033[31m");
  v1::AttentionSeries& series = *stats.add_attention();
  series.set_profile("\033]0;x\007");
  series.mutable_totals()->set_decode_steps(1);
  series.add_layers();
  EXPECT_EQ(DescribeStats(stats, nullptr).find('\033'), std::string::npos);
}

TEST(DensityBarTest, IsAsLongAsItShouldBe) {
  EXPECT_EQ(DensityBar(0.0, 4), "....");
  EXPECT_EQ(DensityBar(0.5, 4), "##..");
  EXPECT_EQ(DensityBar(1.0, 4), "####");
  EXPECT_EQ(DensityBar(7.0, 4), "####");
  EXPECT_EQ(DensityBar(-1.0, 4), "....");
  EXPECT_EQ(DensityBar(std::nan(""), 4), "....");
}

TEST(Terminal, ATextTakesThePlaceOfTheOneBeforeIt) {
  EXPECT_EQ(InPlaceOf("", "one\ntwo\n"), "\033[?7lone\ntwo\n\033[?7h");
  EXPECT_EQ(InPlaceOf("one\ntwo\n", "three\n"), "\033[2A\033[J\033[?7lthree\n\033[?7h");
}

}  // namespace
}  // namespace eta::ctl
